/**
 * The answers that a question's schema names, where they are few enough for a button each.
 *
 * Invariant: each is one that the schema admits, as far as it is of a kind that is understood here.
 * Deliberately does not: understand schemas; the server checks every answer.
 */

/** More values than these are written. */
const MOST = 8;

/**
 * The answers that a schema names, where they are few: a boolean or an `enum`, or an object that has nothing but one of these.
 * Each {label, past: how it is told afterwards, payload}; null: it wants something else.
 */
export function choicesOf(schema) {
  const own = valuesOf(schema);
  if (own) return own;
  const [[name, property] = [], ...others] = Object.entries(schema?.properties ?? {});
  if (name === undefined || others.length > 0) return null;
  return valuesOf(property)?.map((choice) => ({ ...choice, payload: { [name]: choice.payload } })) ?? null;
}

function valuesOf(schema) {
  if (Array.isArray(schema?.enum)) {
    const isFew = schema.enum.length > 0 && schema.enum.length <= MOST;
    return isFew ? schema.enum.map((value) => ({ label: said(value), past: null, payload: value })) : null;
  }
  if (schema?.type !== 'boolean') return null;
  return [{ label: 'Approve', past: 'Approved', payload: true }, { label: 'Decline', past: 'Declined', payload: false }];
}

/** A value in words. */
export const said = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
