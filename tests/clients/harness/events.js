/**
 * Reading an event stream as it comes in, from the body of an answer.
 *
 * Deliberately does not: connect again; comments are dropped.
 */

/** Yields `{event, data}` of each event; ends with the body. */
export async function* events(body) {
  const decoder = new TextDecoder();
  let pending = '';
  for await (const chunk of body) {
    pending += decoder.decode(chunk, { stream: true });
    const blocks = pending.split(/\r?\n\r?\n/);
    pending = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/);
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).replace(/^ /, ''));
      const data = field('data').join('\n');
      if (data !== '') yield { event: field('event')[0] ?? 'message', data };
    }
  }
}
