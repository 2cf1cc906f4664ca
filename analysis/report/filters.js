const rollouts = [...document.querySelectorAll(".rollout")];
const selects = [...document.querySelectorAll("[data-filter]")];
function apply() {
  let shown = 0;
  for (const rollout of rollouts) {
    const match = selects.every((s) => !s.value || rollout.dataset[s.dataset.filter] === s.value);
    rollout.hidden = !match;
    shown += match;
  }
  document.querySelector(".filters output").textContent = `${shown} of ${rollouts.length}`;
}
for (const select of selects) select.addEventListener("change", apply);
apply();
