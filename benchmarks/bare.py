"""An application that does nothing, on the HTTP server that nodes use: to measure the machine."""

import sys

import uvicorn
from starlette.types import Receive, Scope, Send


def main() -> None:
    answer = sys.stdin.buffer.read()
    start = {
        "type": "http.response.start",
        "status": 201,
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
        ],
    }

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start)
        await send({"type": "http.response.body", "body": answer})

    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
