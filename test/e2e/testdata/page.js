const out = document.getElementById("out");
const socket = new WebSocket("ws://" + location.host + "/ws");
socket.onopen = () => socket.send("hello from the page");
socket.onmessage = (e) => { out.textContent = "echo: " + e.data; };
socket.onerror = () => { out.textContent = "the WebSocket failed"; };
