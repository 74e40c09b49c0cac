/**
 * Headless Chromium by playwright-core. The browser itself comes from the system: CHROMIUM_BIN, else /usr/bin/chromium.
 */
import { mkdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import path from 'node:path';
import { chromium } from 'playwright-core';

const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const screenshots = fileURLToPath(new URL('../screenshots/', import.meta.url));

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM_BIN ?? '/usr/bin/chromium', args: FLAGS });
}

/** A picture for people to look at; never compared. */
export async function shoot(page, name) {
  await mkdir(screenshots, { recursive: true });
  await page.screenshot({ path: path.join(screenshots, `${name}.png`) });
}
