"""A decode loop that builds cyclic garbage; the collector's callbacks as JSON lines."""

import gc, json, sys, time


def log_collections(file):
    """One JSON line a collection: type, generation, at_s, duration_s, collected, uncollectable."""
    began = {}

    def callback(phase, info):
        now = time.monotonic()
        if phase == "start":
            began["s"] = now
            return
        line = {
            "type": "gc",
            "generation": info["generation"],
            "at_s": round(began["s"], 6),
            "duration_s": round(now - began["s"], 6),
            "collected": info["collected"],
            "uncollectable": info["uncollectable"],
        }
        file.write(json.dumps(line) + "\n")

    gc.callbacks.append(callback)


def work(steps, live):
    keep = [[{"token": i}] for i in range(live)]
    for step in range(steps):
        request = {"step": step}
        request["self"] = request
        keep.append([request])
        for _ in range(200):
            a = []
            a.append(a)
    return len(keep)


if __name__ == "__main__":
    mode, live = sys.argv[1], int(sys.argv[2])
    if mode == "freeze":
        log_collections(sys.stdout)
        gc.freeze()
    elif mode == "json":
        log_collections(sys.stdout)
    else:
        gc.set_debug(gc.DEBUG_STATS)
    work(int(sys.argv[3]), live)
