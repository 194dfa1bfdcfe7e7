"""Client of boxd: sessions, commands, managed processes, files and images in isolated boxes.

    from boxd_client import Client, ExecRequest, SessionSpec

    boxd = Client()  # or Client("https://boxd.example.com", token="…")
    result = boxd.exec("lab", ExecRequest(argv=["python3", "-c", "print(6 * 7)"], session=SessionSpec()))
    print(result.verdict, result.exit_code, result.stdout)
"""
from .generated import *  # noqa: F401,F403
from .transport import DEFAULT_SOCKET, BoxdError  # noqa: F401
