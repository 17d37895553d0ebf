// A worker in TypeScript, without any package: squares numbers.
//
//   npx --package typescript tsc --strict --target es2022 --lib es2022,dom --module es2022 --types "" worker.ts
//   node worker.js http://127.0.0.1:8080 square        (a token in ROUNDTRIP_TOKEN)

declare const process: {
    argv: string[];
    env: Record<string, string | undefined>;
    on(event: "SIGTERM", listener: () => void): void;
    exit(code: number): never;
};

interface Job {
    id: string;
    token: string;
    attempt: number;
    payload: { n?: unknown; fail_once?: boolean; done?: string };
}

/** It will never succeed. */
class Never extends Error {}
/** It was done before, and nobody here knows with what. */
class Elsewhere extends Error {}

const [url, route] = [process.argv[2].replace(/\/$/, ""), process.argv[3]];
const KEEP_EVERY_MS = 10_000; // well within the route's lease time
let stopping = false;
process.on("SIGTERM", () => (stopping = true));

const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** Posts JSON, and comes again until it is answered; refused calls end the worker. */
async function call<T>(path: string, body: unknown): Promise<T> {
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    const token = process.env.ROUNDTRIP_TOKEN;
    if (token) headers.Authorization = `Bearer ${token}`;
    for (let wait = 50; ; wait = Math.min(wait * 2, 5_000)) {
        try {
            const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
            if (answer.ok) return (await answer.json()) as T;
            if (answer.status !== 429 && answer.status < 500) {
                console.error(`refused: ${await answer.text()}`);
                process.exit(1);
            }
        } catch {
            // The program is away, or the answer was lost.
        }
        await sleep(wait);
    }
}

/** The work itself. */
async function handle({ payload, attempt }: Job): Promise<unknown> {
    if (payload.fail_once && attempt === 1) throw new Error("not at the first attempt");
    if (payload.done) throw new Elsewhere(`done ${payload.done}`);
    if (typeof payload.n !== "number" || !Number.isInteger(payload.n)) throw new Never("n is no whole number");
    return { square: payload.n ** 2 };
}

async function workOn(job: Job): Promise<void> {
    const held = { id: job.id, token: job.token };
    const keeping = setInterval(() => void call("/v1/work/extend", { jobs: [held] }), KEEP_EVERY_MS);
    try {
        const response = await handle(job);
        await call("/v1/work/answer", { jobs: [{ ...held, response }] });
    } catch (error) {
        const then = error instanceof Never ? "dead" : error instanceof Elsewhere ? "elsewhere" : "retry";
        await call("/v1/work/fail", { jobs: [{ ...held, error: String((error as Error).message), then }] });
    } finally {
        clearInterval(keeping);
    }
}

async function main(): Promise<void> {
    while (!stopping) {
        const ask = { route, worker: "typescript", max: 8, wait_ms: 1000 };
        const { jobs } = await call<{ jobs: Job[] }>("/v1/work/lease", ask);
        await Promise.all(jobs.map(workOn));
    }
}

void main();
