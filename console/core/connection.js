/**
 * One word for the whole connection, for people.
 *
 * Invariant: `live` is said only when everything on screen is caught up.
 * Deliberately does not: look at causes; a refused conversation is shown where it happens, not as a lost connection.
 */

/**
 * `starting` (never been live) · `disconnected` (waiting to try again) · `reconnecting` · `resuming` (open, catching
 * up) · `live` · `signed_out`.
 */
export function connectionState({ socket, inbox, conversation, hasBeenLive }) {
  switch (socket.state) {
    case 'closed': return 'signed_out';
    case 'waiting': return 'disconnected';
    case 'idle': return 'starting';
    case 'connecting': return hasBeenLive ? 'reconnecting' : 'starting';
    default: break;
  }
  // A conversation that is opened for the first time is loading, not resuming.
  const isConversationBehind = conversation?.hasBeenLive && ['offline', 'joining', 'catching_up'].includes(conversation.status);
  const isBehind = !inbox.isLoaded || inbox.isResuming || isConversationBehind;
  if (!isBehind) return 'live';
  return hasBeenLive ? 'resuming' : 'starting';
}
