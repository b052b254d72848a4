// The subcommands: what each one's flags are, and the function that runs it. flags.cc binds them to the
// command line. Every Run function returns the process's exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/common.h"

namespace tensorcast::cli {

// Servers: run until SIGTERM or SIGINT, then drain.
struct ServerFlags {
  int ready_fd = -1;  // a line of JSON with the addresses is written there once it serves
};
int RunGlobalStore(const CommonFlags& common, const ServerFlags& flags);
int RunDaemon(const CommonFlags& common, const ServerFlags& flags);

struct PutFlags {
  std::string model;
  std::string key;
  std::optional<uint64_t> expected_revision;
  bool durable = false;
  std::string location = "cpu";
  bool wait_for_space = false;
  bool verify = false;
};
int RunPut(const CommonFlags& common, const PutFlags& flags);

struct GetFlags {
  std::string artifact;  // a key or an id
  std::string device = "cpu";
  std::string lane;
  std::string out;  // write a .safetensors file
  bool wait_for_space = false;
  double timeout_seconds = 0;  // 0: none
};
int RunGet(const CommonFlags& common, const GetFlags& flags);

struct ListFlags {
  bool replicas = false;
};
int RunList(const CommonFlags& common, const ListFlags& flags);

struct RemoveFlags {
  std::string artifact;  // a key or an id
  std::string replica;   // evict this replica only
  bool force = false;
};
int RunRemove(const CommonFlags& common, const RemoveFlags& flags);

struct GcFlags {
  std::string older_than = "24h";
  bool dry_run = false;
};
int RunGc(const CommonFlags& common, const GcFlags& flags);

struct PinFlags {
  std::string replica;
  bool pinned = true;
};
int RunPin(const CommonFlags& common, const PinFlags& flags);

struct KeyFlags {
  std::string key;
  std::string artifact;
  std::optional<uint64_t> expected_revision;
};
int RunKeyBind(const CommonFlags& common, const KeyFlags& flags);
int RunKeyResolve(const CommonFlags& common, const KeyFlags& flags);
int RunKeyList(const CommonFlags& common, const KeyFlags& flags);
int RunKeyWatch(const CommonFlags& common, const KeyFlags& flags);
int RunKeyRemove(const CommonFlags& common, const KeyFlags& flags);

int RunStatus(const CommonFlags& common);

struct ExplainFlags {
  std::string transfer = "last";  // "last", or the beginning of a transfer's or replica's id
};
int RunExplain(const CommonFlags& common, const ExplainFlags& flags);

struct TopFlags {
  bool once = false;  // print one frame and end
  double interval_seconds = 1;
};
int RunTop(const CommonFlags& common, const TopFlags& flags);

struct MakeModelFlags {
  std::string out;
  std::string size = "1GiB";
  int shards = 1;
  uint64_t seed = 1;
};
int RunMakeModel(const CommonFlags& common, const MakeModelFlags& flags);

struct DemoFlags {
  std::string model;  // empty: one is made
  std::string size = "1GiB";
};
int RunDemo(const CommonFlags& common, const DemoFlags& flags);

struct OtelSmokeFlags {
  std::string endpoint;  // empty: a receiver of its own
};
int RunOtelSmoke(const CommonFlags& common, const OtelSmokeFlags& flags);

struct BenchFlags {
  std::string bench;  // "p2p", "attach", "control", "load", "memory"
  std::string bytes;  // of the artifact, as for --size; empty: the benchmark's own
  int runs = 0;       // 0: the benchmark's own
  std::vector<std::string> lanes;
  bool smoke = false;
};
int RunBench(const CommonFlags& common, const BenchFlags& flags);
int RunBenchEmptyServer(const ServerFlags& flags);  // the reference of "control", which it starts itself
int RunBenchCollector(const ServerFlags& flags);    // of "telemetry", likewise

struct ConfigCheckFlags {
  std::string role = "all";  // whose start is tried: "daemon", "global-store", "all"
};
int RunConfigCheck(const CommonFlags& common, const ConfigCheckFlags& flags);
int RunConfigShow(const CommonFlags& common);

}  // namespace tensorcast::cli
