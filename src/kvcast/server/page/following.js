/** Keeps the end of what grows in view until the reader scrolls up. */

export class Following {
  /** `log` grows in `panel`; `newest` is a button that leads back to its end. */
  constructor(panel, log, newest) {
    Object.assign(this, { panel, newest, going: true, scrolled: 0 });
    new ResizeObserver(() => {
      if (this.going) this.follow();
    }).observe(log); // also as the panel is shown
    window.addEventListener("scroll", () => this.noteScroll(log), { passive: true });
  }

  follow() {
    this.going = true;
    this.newest.hidden = true;
    if (!this.panel.hidden) window.scrollTo(0, document.documentElement.scrollHeight);
  }

  /** Stay where the reader is. */
  rest() {
    this.going = false;
  }

  noteScroll(log) {
    if (this.panel.hidden) return;
    const left = document.documentElement.scrollHeight - window.innerHeight - window.scrollY;
    this.going = left < 24 || (this.going && window.scrollY >= this.scrolled); // it may have grown
    this.scrolled = window.scrollY;
    this.newest.hidden = this.going || log.childElementCount === 0;
  }
}
