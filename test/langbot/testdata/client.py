"""Connects with the library that LangBot's client uses, in the way it uses it."""
import asyncio
import json
import sys

import websockets

BASE, WORKSPACE = sys.argv[1], {"instance_uuid": "py", "workspace_uuid": "w", "placement_generation": 1}


def cut(text, size=64 * 1024):
    """Fragments of at most size bytes, between characters."""
    data = text.encode()
    while data:
        end = min(size, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[:end].decode()
        data = data[end:]


class Client:
    def __init__(self, ws):
        self.ws, self.seq, self.waiting = ws, 100, {}
        self.reader = asyncio.create_task(self.read())

    async def read(self):
        async for message in self.ws:
            reply = json.loads(message)
            self.waiting.pop(reply["seq_id"]).set_result(reply)

    async def call(self, action, data, context=WORKSPACE):
        self.seq += 1
        request = {"seq_id": self.seq, "action": action, "data": data}
        if context:
            request["context"] = context
        text = json.dumps(request, ensure_ascii=False)
        answer = self.waiting[self.seq] = asyncio.get_running_loop().create_future()
        await self.ws.send(text if len(text.encode()) <= 64 * 1024 else list(cut(text)))
        reply = await asyncio.wait_for(answer, 60)
        assert set(reply) >= {"seq_id", "code", "message", "data"}, reply
        assert reply["code"] == 0, reply["message"]
        return reply["data"]


async def main():
    headers = {"X-LangBot-Instance-Id": "py"}
    async with websockets.connect(BASE + "/rpc/ws", extra_headers=headers, max_size=16 * 2**20, open_timeout=10) as ws:
        print("extensions:", [type(e).__name__ for e in ws.extensions])
        c = Client(ws)
        await c.call("__ping", {}, None)
        await c.call("box_init", {"enabled": True, "backend": "local", "local": {"profile": "default"}}, None)
        assert (await c.call("box_get_backend_info", {}, None))["available"] is True
        spec = {"session_id": "person_1", "timeout_sec": 30}
        await c.call("box_create_session", spec)
        big = "é€😀" * 100_000
        await c.call("box_create_skill", {"skill": {"name": "big"}})
        written = await c.call("box_write_skill_file", {"name": "big", "path": "file.txt", "content": big})
        assert written["bytes_written"] == len(big.encode()), written
        assert (await c.call("box_read_skill_file", {"name": "big", "path": "file.txt"}))["content"] == big
        await c.call("box_delete_skill", {"name": "big"})
        results = await asyncio.gather(*(c.call("box_exec", {**spec, "cmd": f"echo {i}"}) for i in range(40)))
        assert [r["stdout"] for r in results] == [str(i) for i in range(40)], results
        started = await c.call("box_start_managed_process", {"session_id": "person_1", "spec": {"process_id": "mcp", "command": "python3", "args": ["-uc", (
            "import sys, json\n"
            "for line in sys.stdin:\n"
            "    n = json.loads(line)['n']\n"
            "    print(json.dumps({'n': n, 'pad': 'é' * n}, ensure_ascii=False), flush=True)\n")]}})
        assert started["status"] == "running"
        relay = {**headers, "X-LangBot-Workspace-Id": "w", "X-LangBot-Placement-Generation": "1"}
        import hashlib
        namespace = hashlib.sha256(b"py\0w").hexdigest()[:24]
        url = f"{BASE}/v1/sessions/ws-{namespace}-g1-person_1/managed-process/mcp/ws"
        async with websockets.connect(url, extra_headers=relay, subprotocols=["mcp"], compression="deflate") as ws2:
            assert ws2.subprotocol == "mcp"
            for n in (0, 1, 70_000, 500_000):
                await ws2.send(json.dumps({"n": n}))
                answer = json.loads(await asyncio.wait_for(ws2.recv(), 60))
                assert answer == {"n": n, "pad": "é" * n}, (n, len(str(answer)))
        await c.call("box_delete_session", {"session_id": "person_1"})
        await c.call("box_shutdown", {}, None)
        c.reader.cancel()
    print("ok")


asyncio.run(main())
