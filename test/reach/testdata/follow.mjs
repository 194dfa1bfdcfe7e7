// Follows a process from its first byte to its end, while the daemon dies and another one begins.
import { boxd, follow, must } from "boxd-client";

const [url, token] = process.argv.slice(2);
const client = boxd({ url, token });
const script = "n=0; while [ $n -lt 2000 ]; do n=$((n + 1)); echo $n; [ $((n % 50)) != 0 ] || sleep 0.05; done";
must(await client.POST("/v1/sessions/{id}/processes", { params: { path: { id: "f" } }, body: { id: "p", argv: ["sh", "-c", script], session: {} } }));
let text = "";
for await (const part of follow(client, "f", "p", 600_000)) {
  if (text === "") console.log("begun");
  if (part.kind === "data") text += new TextDecoder().decode(part.data);
  if (part.kind === "gap") throw new Error(`a gap of ${part.bytes}`);
  if (part.kind === "exit" && part.code !== 0) throw new Error(part.verdict);
}
const want = Array.from({ length: 2000 }, (_, i) => `${i + 1}\n`).join("");
if (text !== want) throw new Error(`${text.length} bytes instead of ${want.length}`);
