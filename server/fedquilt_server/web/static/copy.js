// Buttons that copy a command. Browsers offer the clipboard only to localhost and https; otherwise the text is selected.

function select(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(button) {
  const node = button.closest("li").querySelector("code");
  let done = false;
  try {
    await navigator.clipboard.writeText(node.textContent);
    done = true;
  } catch {
    select(node);
    done = document.execCommand("copy"); // deprecated, but the only way over plain http
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

export function startCopying() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
}
