"""Is the server in this container alive? Exit code 0 if so. Asks /health at the port that ``LUCE_PORT`` names, by TLS
if the server has a certificate."""

import os
import ssl
import sys
import urllib.request

scheme = "https" if os.environ.get("LUCE_TLS_CERT") else "http"
url = f"{scheme}://127.0.0.1:{os.environ.get('LUCE_PORT', '8000')}/health"
try:
    # The certificate names the host as others know it, not 127.0.0.1.
    urllib.request.urlopen(url, timeout=4, context=ssl._create_unverified_context()).close()
except OSError as error:
    sys.exit(f"{url}: {error}")
