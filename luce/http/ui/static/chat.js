// A plain chat with pictures, over the same API that everybody uses.
import { messages, withKey } from "./feed.js";
import { element } from "./detail.js";

export class Chat {
  constructor({ turns, form, question, picture, pictures, send, stop }) {
    Object.assign(this, { turns, question, pictures, send, stop });
    this.history = [];
    this.chosen = [];
    form.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    question.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); this.ask(); } });
    picture.addEventListener("change", async () => {
      for (const file of picture.files) await this.#add(file);
      picture.value = "";
    });
    form.addEventListener("dragover", (event) => event.preventDefault());
    form.addEventListener("drop", async (event) => { event.preventDefault(); for (const file of event.dataTransfer.files) await this.#add(file); });
    stop.addEventListener("click", () => this.running?.abort());
  }

  async #add(file) {
    const url = await new Promise((done, fail) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.onerror = () => fail(reader.error);
      reader.readAsDataURL(file);
    });
    const image = element("img", { src: url, alt: `${file.name}, to be sent; click to leave out` });
    image.addEventListener("click", () => { this.chosen = this.chosen.filter((one) => one !== url); image.remove(); });
    this.chosen.push(url);
    this.pictures.append(image);
  }

  #turn(kind, text = "") {
    const turn = element("div", { className: `turn ${kind}`, textContent: text });
    this.turns.append(turn);
    turn.scrollIntoView({ block: "end" });
    return turn;
  }

  async ask() {
    const text = this.question.value.trim();
    if (this.running || (!text && !this.chosen.length)) return;
    const content = [...this.chosen.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
    const mine = this.#turn("user", text);
    mine.prepend(...this.chosen.map((src) => element("img", { src, alt: "picture that was sent" })));
    this.history.push({ role: "user", content });
    this.question.value = ""; this.chosen = []; this.pictures.replaceChildren();
    this.running = new AbortController();
    this.send.disabled = true; this.stop.hidden = false;
    let answer = null, thinking = null, said = "";
    try {
      const response = await fetch("/v1/chat/completions", {
        method: "POST", signal: this.running.signal, headers: withKey({ "Content-Type": "application/json" }),
        body: JSON.stringify({ messages: this.history, stream: true }),
      });
      if (!response.ok) throw new Error((await response.json()).error?.message ?? response.statusText);
      for await (const data of messages(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const delta = chunk.choices[0]?.delta ?? {};
        if (delta.reasoning_content) { thinking ??= this.#turn("thinking"); thinking.textContent += delta.reasoning_content; }
        if (delta.content) { answer ??= this.#turn("answer"); said += delta.content; answer.textContent = said; answer.scrollIntoView({ block: "end" }); }
      }
      this.history.push({ role: "assistant", content: said });
    } catch (error) {
      if (error.name !== "AbortError") this.#turn("fault", error.message);
      if (said) this.history.push({ role: "assistant", content: said }); else this.history.pop();
    } finally {
      this.running = null;
      this.send.disabled = false; this.stop.hidden = true;
      this.question.focus();
    }
  }
}
