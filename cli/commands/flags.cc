#include "cli/commands/flags.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/telemetry.h"
#include "otel/api/span.h"

namespace tensorcast::cli {
namespace {

constexpr int kUsageError = 2;  // the exit code for a command line that makes no sense

// The flags of all commands live as long as the parse; one command runs.
struct AllFlags {
  CommonFlags common;
  ServerFlags server;
  PutFlags put;
  GetFlags get;
  ListFlags list;
  RemoveFlags remove;
  GcFlags gc;
  PinFlags pin;
  KeyFlags key;
  MakeModelFlags make_model;
  DemoFlags demo;
  OtelSmokeFlags otel_smoke;
  BenchFlags bench;
  ExplainFlags explain;
  TopFlags top;
  ConfigCheckFlags config_check;
  std::function<int()> run;
};

// The checks of flags, each with a message for people: CLI11's own ranges print 300 digits.
const CLI::Validator kNotEmpty([](const std::string& text) { return text.empty() ? "it is empty" : ""; }, "");
const CLI::Validator kNotNegative(
    [](const std::string& text) {
      double value = 0;
      return absl::SimpleAtod(text, &value) && value >= 0 ? "" : text + " is no number of at least 0";
    },
    "");
const CLI::Validator kPositive(
    [](const std::string& text) {
      int value = 0;
      return absl::SimpleAtoi(text, &value) && value > 0 ? "" : text + " is no number of at least 1";
    },
    "");

void AddCommon(CLI::App* command, CommonFlags& common) {
  command->add_option("--config", common.config, "YAML configuration file")->check(CLI::ExistingFile);
  command->add_option("--set", common.sets, "Override one key of the configuration: a.b.c=value")->take_all();
  command->add_flag("--json", common.json, "Print the result as JSON");
  command->add_flag("--tracing", common.tracing,
                    "Send traces, metrics and logs (observability.otel.enabled)");
  command->add_option("--otlp-endpoint", common.otlp_endpoint,
                      "The same, to this OTLP collector: http://host:port");
  command->add_option("--trace-file", common.trace_file,
                      "Write this process's spans to a file for Perfetto or chrome://tracing");
}

void AddDaemonAddress(CLI::App* command, CommonFlags& common) {
  command->add_option("--daemon", common.daemon, "The daemon to talk to: unix:/path or host:port");
}

CLI::App* AddCommand(CLI::App& parent, AllFlags& all, const std::string& name, const std::string& help,
                     std::function<int()> run) {
  CLI::App* command = parent.add_subcommand(name, help);
  AddCommon(command, all.common);
  command->callback([&all, run = std::move(run)] { all.run = run; });
  return command;
}

CLI::App* AddClientCommand(CLI::App& parent, AllFlags& all, const std::string& name, const std::string& help,
                           std::function<int()> run) {
  CLI::App* command = AddCommand(parent, all, name, help, std::move(run));
  AddDaemonAddress(command, all.common);
  return command;
}

void AddServers(CLI::App& app, AllFlags& all) {
  for (CLI::App* server :
       {AddCommand(app, all, "global-store",
                   "Run the global store: what exists, where it is, who may pull from whom",
                   [&] { return RunGlobalStore(all.common, all.server); }),
        AddCommand(app, all, "daemon", "Run this host's store daemon",
                   [&] { return RunDaemon(all.common, all.server); })}) {
    server->add_option("--ready-fd", all.server.ready_fd,
                       "Write a JSON line with the addresses to this descriptor");
  }
}

void AddTransfers(CLI::App& app, AllFlags& all) {
  CLI::App* put = AddClientCommand(app, all, "put", "Store a safetensors model",
                                   [&] { return RunPut(all.common, all.put); });
  put->add_option("model", all.put.model,
                  "A .safetensors file, or a folder with model.safetensors.index.json")
      ->required();
  put->add_option("--key", all.put.key, "Bind this name to the artifact")->check(kNotEmpty);
  put->add_option("--expect-revision", all.put.expected_revision,
                  "Bind only if the key has this revision (0: does not exist)");
  put->add_flag("--durable", all.put.durable, "Also pack it to disk before returning");
  put->add_option("--device", all.put.location, "Where the first replica is made")->capture_default_str();
  put->add_flag("--wait", all.put.wait_for_space, "Wait for space instead of failing when the pool is held");
  put->add_flag("--verify", all.put.verify,
                "Read the files twice and compare: finds what is written meanwhile through a mapping where\n"
                "size and mtime do not tell (tmpfs, overlayfs, network file systems)");

  CLI::App* get = AddClientCommand(app, all, "get", "Bring an artifact to this daemon",
                                   [&] { return RunGet(all.common, all.get); });
  get->add_option("artifact", all.get.artifact, "A key, or an artifact id (tc1:...)")->required();
  get->add_option("--device", all.get.device, "gpu:N, cpu or disk")->capture_default_str();
  get->add_option("--lane", all.get.lane, "Force the way: local, ucx, ucx-rma or disk");
  get->add_option("--out", all.get.out, "Write the tensors to this .safetensors file")->check(kNotEmpty);
  get->add_flag("--wait", all.get.wait_for_space, "Wait for space instead of failing when the pool is held");
  get->add_option("--timeout", all.get.timeout_seconds, "Give up after this many seconds")
      ->check(kNotNegative);
}

void AddManagement(CLI::App& app, AllFlags& all) {
  AddClientCommand(app, all, "ls", "List artifacts, their keys and replicas", [&] {
    return RunList(all.common, all.list);
  })->add_flag("--replicas", all.list.replicas, "List this daemon's replicas instead");

  CLI::App* rm = AddClientCommand(app, all, "rm", "Delete an artifact, or evict one replica",
                                  [&] { return RunRemove(all.common, all.remove); });
  rm->add_option("artifact", all.remove.artifact, "A key (which is removed too), or an artifact id");
  rm->add_option("--replica", all.remove.replica, "Evict only this replica from this daemon")
      ->check(kNotEmpty);
  rm->add_flag("--force", all.remove.force, "Even when other keys are bound to it, or it is the last copy");

  CLI::App* gc = AddClientCommand(app, all, "gc", "Delete artifacts that no key names",
                                  [&] { return RunGc(all.common, all.gc); });
  gc->add_option("--older-than", all.gc.older_than, "Only those at least this old, such as 24h")
      ->capture_default_str();
  gc->add_flag("--dry-run", all.gc.dry_run, "Only list them");

  for (const bool pinned : {true, false}) {
    AddClientCommand(app, all, pinned ? "pin" : "unpin",
                     pinned ? "Keep a replica of this daemon from being evicted" : "Allow eviction again",
                     [&all, pinned] {
                       all.pin.pinned = pinned;
                       return RunPin(all.common, all.pin);
                     })
        ->add_option("replica", all.pin.replica, "A replica id, from ls --replicas")
        ->required();
  }
  AddClientCommand(app, all, "status", "Show the cluster and this daemon",
                   [&] { return RunStatus(all.common); });
}

void AddObservers(CLI::App& app, AllFlags& all) {
  AddClientCommand(app, all, "explain", "Show where the time of a transfer to this daemon went",
                   [&] { return RunExplain(all.common, all.explain); })
      ->add_option("transfer", all.explain.transfer,
                   "last, or the beginning of the id of a transfer or of the replica it made")
      ->capture_default_str();
  CLI::App* top = AddClientCommand(app, all, "top", "Watch the cluster: pools, throughput, transfers",
                                   [&] { return RunTop(all.common, all.top); });
  top->add_flag("--once", all.top.once, "Print one frame and end");
  top->add_option("--interval", all.top.interval_seconds, "Seconds between frames")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

void AddKeys(CLI::App& app, AllFlags& all) {
  CLI::App* key = app.add_subcommand("key", "Work with keys: names bound to artifacts");
  key->require_subcommand(1);
  CLI::App* bind = AddClientCommand(*key, all, "bind", "Bind a key to an artifact id",
                                    [&] { return RunKeyBind(all.common, all.key); });
  bind->add_option("key", all.key.key, "The name; it is made, or led to another artifact")->required();
  bind->add_option("artifact", all.key.artifact, "An artifact id (tc1:...)")->required();
  CLI::App* resolve = AddClientCommand(*key, all, "resolve", "Show what a key names",
                                       [&] { return RunKeyResolve(all.common, all.key); });
  resolve->add_option("key", all.key.key, "The name")->required();
  CLI::App* list =
      AddClientCommand(*key, all, "ls", "List keys", [&] { return RunKeyList(all.common, all.key); });
  list->add_option("prefix", all.key.key, "Only keys that start so");
  CLI::App* watch = AddClientCommand(*key, all, "watch", "Print keys that start so, and each change of them",
                                     [&] { return RunKeyWatch(all.common, all.key); });
  watch->add_option("prefix", all.key.key, "What their names start with")->required();
  CLI::App* remove =
      AddClientCommand(*key, all, "rm", "Remove a key", [&] { return RunKeyRemove(all.common, all.key); });
  remove->add_option("key", all.key.key, "The name; its artifact stays")->required();
  for (CLI::App* command : {bind, remove}) {
    command->add_option("--expect-revision", all.key.expected_revision,
                        "Only if the key has this revision (0: does not exist)");
  }
}

void AddBench(CLI::App& app, AllFlags& all) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure a cluster on this machine beside what the machine can do");
  bench->require_subcommand(1);
  const std::pair<const char*, const char*> benches[] = {
      {"p2p", "Host to host between two daemons, verified, beside a plain copy and ucx_perftest"},
      {"attach", "A client maps a ready replica: a large one beside one of 1 MiB"},
      {"control", "ResolveKey by 64 callers, beside a call that does nothing"},
      {"load", "A file to a ready replica, cold and warm, beside fio"},
      {"memory", "Resident memory of a daemon beyond its pools, idle and after transfers"},
      {"telemetry", "Transfers and calls with everything observed, beside the same with telemetry off"}};
  for (const auto& [name, help] : benches) {
    CLI::App* command = AddCommand(*bench, all, name, help, [&all, name = std::string(name)] {
      all.bench.bench = name;
      return RunBench(all.common, all.bench);
    });
    command->add_option("--runs", all.bench.runs, "Pairs of measurement and reference (memory: transfers)")
        ->check(kPositive);
    command->add_option("--bytes", all.bench.bytes, "Of the artifact, such as 1GiB");
    command->add_flag("--smoke", all.bench.smoke, "Tiny and short: proves that it runs, measures nothing");
    const bool telemetry = name == std::string_view("telemetry");
    if (!telemetry && name != std::string_view("p2p")) continue;
    std::vector<std::string> lanes = {"local", "ucx", "ucx-rma"};
    if (telemetry) lanes.push_back("ResolveKey");
    command->add_option("--lane", all.bench.lanes, "Repeatable; all but ucx-rma by default")
        ->check(CLI::IsMember(lanes))
        ->take_all();
  }
  // Of no use to people: the reference server of `control` and the collector of `telemetry`.
  for (CLI::App* server :
       {AddCommand(*bench, all, "empty-server", "", [&] { return RunBenchEmptyServer(all.server); }),
        AddCommand(*bench, all, "collector", "", [&] { return RunBenchCollector(all.server); })}) {
    server->group("")->add_option("--ready-fd", all.server.ready_fd)->required();
  }
}

void AddTools(CLI::App& app, AllFlags& all) {
  CLI::App* make_model =
      AddCommand(app, all, "make-model", "Write a Llama-shaped bf16 model with random weights",
                 [&] { return RunMakeModel(all.common, all.make_model); });
  make_model->add_option("out", all.make_model.out, "A .safetensors file; with --shards a folder")
      ->required();
  make_model->add_option("--size", all.make_model.size, "About this many bytes")->capture_default_str();
  make_model->add_option("--shards", all.make_model.shards, "Into how many files")
      ->check(CLI::Range(1, 999))
      ->capture_default_str();
  make_model->add_option("--seed", all.make_model.seed, "The same seed and size give the same bytes")
      ->capture_default_str();

  CLI::App* demo =
      AddCommand(app, all, "demo", "Run the main job on a cluster of real processes on this machine",
                 [&] { return RunDemo(all.common, all.demo); });
  demo->add_option("--model", all.demo.model, "Your own .safetensors file or sharded folder");
  demo->add_option("--size", all.demo.size, "Of the model that is made when none is given")
      ->capture_default_str();

  CLI::App* smoke =
      AddCommand(app, all, "otel-smoke",
                 "Prove that traces, metrics and logs of a cluster of real processes arrive and fit together",
                 [&] { return RunOtelSmoke(all.common, all.otel_smoke); });
  smoke->add_option("--endpoint", all.otel_smoke.endpoint,
                    "Send to this OTLP collector, http://host:port, instead of a receiver of its own");

  CLI::App* config = app.add_subcommand("config", "Check or show the configuration");
  config->require_subcommand(1);
  AddCommand(*config, all, "check", "Say what is wrong with a configuration, and where",
             [&] { return RunConfigCheck(all.common, all.config_check); })
      ->add_option("--role", all.config_check.role, "Whose start it is to serve on this host")
      ->check(CLI::IsMember({"daemon", "global-store", "all"}))
      ->capture_default_str();
  AddCommand(*config, all, "show", "Print the configuration in force, defaults included",
             [&] { return RunConfigShow(all.common); });
}

// Those that take several operations, none of which is the command's own: its span makes them one trace.
constexpr std::string_view kSpannedCommands[] = {"ls", "rm", "gc", "pin", "unpin", "status"};

int RunInSpan(const std::string& name, const AllFlags& all) {
  otel::ScopedSpan span(absl::StrCat("Command/", name), TraceContext());
  const int code = all.run();
  if (code != 0) span->SetError("exit code", absl::StrCat(code));
  return code;
}

// Telemetry is up before the command begins, and flushed when it has ended.
int RunObserved(const CLI::App& app, const AllFlags& all) {
  const std::string name = app.get_subcommands().front()->get_name();
  // These say themselves what is wrong with a configuration, or have telemetry of their own.
  if (name == "config" || name == "make-model" || name == "otel-smoke") return all.run();
  const bool server = name == "global-store" || name == "daemon";
  // Before the first file is made: what a server keeps is for its own user.
  if (server) umask(0077);
  const absl::StatusOr<CommandTelemetry> telemetry = StartTelemetry(all.common, server ? name : "client");
  if (!telemetry.ok()) return Fail(telemetry.status());
  return std::ranges::find(kSpannedCommands, name) == std::end(kSpannedCommands) ? all.run()
                                                                                 : RunInSpan(name, all);
}

// What is wrong when a word stands where a command is expected and is none; empty when that is not it. CLI11
// says only that a command is missing.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    if (command->get_require_subcommand_min() == 0 || word.empty() || word.front() == '-') return "";
    const auto named = command->get_subcommands([&](const CLI::App* one) { return one->get_name() == word; });
    if (named.empty()) {
      const std::string name = command == &app ? "tensorcast" : "tensorcast " + command->get_name();
      return "\"" + word + "\" is no command of " + name + "; see " + name + " --help";
    }
    command = named.front();
  }
  return "";
}

}  // namespace

int ParseAndRun(int argc, char** argv) {
  CLI::App app("TensorCast: model weights stored once and then everywhere", "tensorcast");
  app.require_subcommand(1);
  app.set_version_flag("--version", TENSORCAST_VERSION);
  AllFlags all;
  AddServers(app, all);
  AddTransfers(app, all);
  AddManagement(app, all);
  AddObservers(app, all);
  AddKeys(app, all);
  AddTools(app, all);
  AddBench(app, all);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string unknown = UnknownCommand(app, {argv + 1, argv + argc}); !unknown.empty()) {
      std::fprintf(stderr, "%s\n", unknown.c_str());
      return kUsageError;
    }
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  return RunObserved(app, all);
}

}  // namespace tensorcast::cli
