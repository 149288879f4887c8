"""Makes a small database with the tables and columns of an Nsight Systems SQLite export (nsys 2025).

    python make.py decode.sqlite

Ten decode steps of one process: a launch and a kernel each, a copy to the host, an NVTX range, a mutex that is waited
for; one kernel per step starts late. Times in nanoseconds since the session began.
"""

import sqlite3
import sys

PID, MAIN, HELPER = 4242, 4242, 4250
GLOBAL_PID = PID << 24
STRINGS = {
    1: "python", 2: "kv_transfer", 10: "cudaLaunchKernel_v7000", 11: "cudaMemcpyAsync_v3020",
    12: "cudaStreamSynchronize_v3020", 20: "void rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, float)",
    21: "rms_norm_kernel", 22: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30: "pthread_mutex_lock", 31: "read",
    40: "decode_step",
}  # fmt: skip

SCHEMA = """
PRAGMA page_size = 512;
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL REFERENCES StringIds(id), priority INTEGER, globalTid INTEGER);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
  severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
  gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
  sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
  dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
  migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
  callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
  int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE OSRT_API (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, nestingLevel INTEGER,
  callchainId INTEGER NOT NULL);
"""


def main() -> None:
    database = sqlite3.connect(sys.argv[1])
    database.executescript(SCHEMA)
    put(database, "StringIds", [{"id": key, "value": value} for key, value in STRINGS.items()])
    put(database, "ThreadNames", [{"nameId": 1, "priority": 20, "globalTid": GLOBAL_PID | MAIN},
                                  {"nameId": 2, "priority": 20, "globalTid": GLOBAL_PID | HELPER}])
    put(database, "PROCESSES", [{"globalPid": GLOBAL_PID, "pid": PID, "name": "engine"}])
    put(database, "TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": 1796056800000000000}])
    put(database, "DIAGNOSTIC_EVENT", [
        {"timestamp": 1, "timestampType": 1, "source": 1, "severity": 1, "text": "Profiling has started."},
        {"timestamp": 2, "timestampType": 1, "source": 1, "severity": 2, "text": "Not all NVTX events might have been collected."},
    ])
    for step in range(10):
        at, correlation = 1_000_000 + step * 500_000, 100 + 3 * step
        thread = {"globalTid": GLOBAL_PID | MAIN, "eventClass": 0, "returnValue": 0, "callchainId": 0}
        device = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": GLOBAL_PID}
        put(database, "NVTX_EVENTS", [{"start": at - 5_000, "end": at + 400_000, "eventType": 59, "textId": 40,
                                       "globalTid": GLOBAL_PID | MAIN, "domainId": 0}])
        put(database, "CUPTI_ACTIVITY_KIND_RUNTIME", [
            {"start": at, "end": at + 4_000, "nameId": 10, "correlationId": correlation, **thread},
            {"start": at + 10_000, "end": at + 13_000, "nameId": 11, "correlationId": correlation + 1, **thread},
            {"start": at + 14_000, "end": at + 350_000, "nameId": 12, "correlationId": correlation + 2, **thread},
        ])
        put(database, "CUPTI_ACTIVITY_KIND_KERNEL", [
            {"start": at + 20_000, "end": at + 300_000, "correlationId": correlation, "demangledName": 20,
             "shortName": 21, "gridX": 16, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, **device},
        ])
        put(database, "CUPTI_ACTIVITY_KIND_MEMCPY", [
            {"start": at + 301_000, "end": at + 340_000, "correlationId": correlation + 1, "bytes": 4096,
             "copyKind": 2, **device},
        ])
        put(database, "OSRT_API", [
            {**thread, "globalTid": GLOBAL_PID | HELPER, "start": at, "end": at + 200_000, "nameId": 30,
             "correlationId": step, "nestingLevel": 0},
        ])
    database.commit()
    database.execute("VACUUM")
    database.close()


def put(database, table, rows):
    columns = {row[1]: 0 if row[3] else None for row in database.execute(f"PRAGMA table_info({table})")}
    marks = ", ".join("?" * len(columns))
    database.executemany(
        f"INSERT INTO {table} VALUES ({marks})", [tuple({**columns, **row}.values()) for row in rows]
    )


main()
