// Verifies webhooks, one JSON object a line with headers and body, as a receiver with the library of
// Standard Webhooks does. The secret is the argument.
import { createInterface } from "node:readline";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.argv[2]);
let n = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const { headers, body } = JSON.parse(line);
  const message = webhook.verify(body, headers);
  if (!message.type || !message.timestamp || !message.data.session) throw new Error(`not a message: ${body}`);
  let forged = false;
  try {
    webhook.verify(body.replace("session", "sessiom"), headers);
    forged = true;
  } catch {}
  if (forged) throw new Error("a forged message is genuine");
  n++;
}
console.log(n);
