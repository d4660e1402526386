"""A Hugging Face Hub on loopback, with as much of its interface as the client library needs to push and load."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """
    :ivar files: the content of each file, by repository and name
    :ivar private: whether each repository was made for its user alone
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(self.path)
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.server.files.setdefault(repo, {})
            self.server.private[repo] = asked.get("visibility") == "private"
            self._answer({"url": f"{self.server.address}/{repo}", "id": repo})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self._answer({"files": modes})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in body.decode().splitlines():
                each = json.loads(line)
                if each["key"] == "file":
                    self.server.files[found[1]][each["value"]["path"]] = base64.b64decode(each["value"]["content"])
            commit = {"commitUrl": f"{self.server.address}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT}
            self._answer({**commit, "hookOutput": "", "success": True})
        else:
            self._answer({"error": f"no POST {path}"}, 404)

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.+)?", path):
            repo = self.server.files.get(found[1])
            if repo is None:
                self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                return
            siblings = [{"rfilename": name} for name in repo]
            self._answer({"id": found[1], "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.+", path):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.server.files[found[1]].items()
            ]
            self._answer(tree)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = self.server.files[found[1]][found[2]]
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            self._answer(content, ETag=tag, X_Repo_Commit=COMMIT)
        else:
            self._answer({"error": f"no GET {path}"}, 404)

    do_HEAD = do_GET
