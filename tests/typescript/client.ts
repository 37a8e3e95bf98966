// What a caller writes against the generated types; compiled by tests/acceptance/test_generated_clients.py.
import type { components, operations, paths } from "./api";

type Schemas = components["schemas"];

// Only what is needed is required.
export const task: Schemas["TaskIn"] = { target: { type: "handler", name: "send_mail" } };
export const webhook: Schemas["TaskIn"] = {
  target: { type: "http", url: "https://api.example.com/hook" },
  payload: { user: 7 },
  delay: "PT10M",
  retry: { max_attempts: 3 },
};
export const command: Schemas["TaskIn"] = { target: { type: "command", argv: ["backup.sh"] } };
export const taskPatch: Schemas["TaskPatch"] = { priority: 9, name: null };
export const batch: Schemas["BatchIn"] = { tasks: [task, webhook] };

export const cron: Schemas["ScheduleIn"] = { name: "daily", cron: "0 8 * * *", task };
export const interval: Schemas["ScheduleIn"] = { name: "often", interval: 30, task };
export const rule: Schemas["ScheduleIn"] = { name: "payday", rrule: "FREQ=MONTHLY", workflow: "pay" };
export const schedulePatch: Schemas["SchedulePatch"] = { cron: "0 9 * * *", interval: null };
export const nothing: Schemas["SchedulePatch"] = {};
export const preview: Schemas["PreviewIn"] = { cron: "30 2 * * *", misfire: { policy: "all" } };

export const workflow: Schemas["WorkflowIn"] = {
  name: "nightly",
  steps: [{ id: "extract", target: { type: "handler", name: "extract" } }],
};
export const lease: Schemas["LeaseIn"] = { worker: "w", incarnation: "1", handlers: ["extract"] };
export const report: Schemas["ReportIn"] = {
  outcomes: [{ id: "0197f3a0-0000-7000-8000-000000000000", fence: 1, status: "succeeded" }],
};
export const replay: Schemas["ReplayIn"] = { filter: { resolved: false } };

// What is missing or wrong is noticed.
// @ts-expect-error a task needs a target
export const aimless: Schemas["TaskIn"] = {};
// @ts-expect-error a schedule needs a name
export const nameless: Schemas["ScheduleIn"] = { cron: "0 8 * * *", task };
// @ts-expect-error a handler has no url
export const mixed: Schemas["TaskIn"] = { target: { type: "handler", url: "https://x.example" } };
// @ts-expect-error no such policy
export const odd: Schemas["SchedulePatch"] = { overlap: "sometimes" };
// @ts-expect-error no such field
export const unknownField: Schemas["TaskPatch"] = { prioritty: 9 };

// Answers have all that every answer has.
type Created = operations["createTask"]["responses"][201]["content"]["application/json"];
type Refused = operations["createTask"]["responses"][422]["content"]["application/problem+json"];
type Node = Schemas["ClusterOut"]["nodes"][number];
type Step = Schemas["GraphOut"]["nodes"][number];

export function describe(made: Created, refused: Refused, node: Node, step: Step): string {
  const schedule: string | null = made.schedule_id;
  const places: string[] = (refused.errors ?? []).map((error) => error.pointer);
  const words: string[] = [made.id, made.state, refused.type, node.version, step.if ?? "always"];
  return [...words, schedule ?? "by hand", ...places].join(" ");
}

export type Listed = paths["/v1/tasks"]["get"]["responses"][200]["content"]["application/json"];
