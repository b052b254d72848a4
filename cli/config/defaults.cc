#include "cli/config/defaults.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/config/config.h"
#include "cli/config/setter.h"
#include "rpc/address.h"

namespace tensorcast::config {
namespace {

enum class Kind {
  kText,
  kSize,         // more than nothing
  kInterval,     // a duration between 1 ms and a year
  kCount,        // 0 to 1,000,000
  kThreads,      // 0 to 1,024
  kConnections,  // 1 to 1,000,000
  kPositive,     // 1 to 1,024: threads, buffers
  kRatio,        // 0 to 1
  kChoice,
  kListen,      // host:port or unix:/path
  kListenTcp,   // host:port
  kAdvertise,   // host:port that can be connected to; port 0 stands for the one listened on
  kServer,      // host:port or unix:/path that can be connected to
  kSocketPath,  // of a unix socket
  kPorts,       // first-last
};

struct Key {
  std::string_view path;
  Kind kind;
  std::string_view value;         // the default, as --set would write it; $STATE is StateDirectory()
  std::string_view choices = {};  // of kChoice: "a|b|c"
};

constexpr Key kKeys[] = {
    {"global_store.listen", Kind::kListen, "unix:$STATE/global_store.sock"},
    {"global_store.metadata_store", Kind::kChoice, "sqlite", "sqlite|memory"},
    {"global_store.metadata_path", Kind::kText, "$STATE/global_store.db"},
    {"global_store.heartbeat_interval", Kind::kInterval, "2s"},
    {"global_store.node_ttl", Kind::kInterval, "10s"},
    {"global_store.grant_ttl", Kind::kInterval, "30s"},
    {"global_store.max_connections", Kind::kConnections, "16384"},

    // Nothing listens beyond this host's sockets, and nothing is imported, unless it is configured.
    {"daemon.listen", Kind::kListenTcp, ""},
    {"daemon.advertise", Kind::kAdvertise, ""},
    {"daemon.unix_socket", Kind::kSocketPath, ""},
    {"daemon.handle_socket", Kind::kSocketPath, ""},
    {"daemon.state_dir", Kind::kText, "$STATE"},
    {"daemon.global_store", Kind::kServer, ""},
    {"daemon.host_pool", Kind::kSize, "4GiB"},
    {"daemon.huge_pages", Kind::kText, "true"},
    {"daemon.device_runtime", Kind::kChoice, "auto", "auto|cuda|none|fake"},
    {"daemon.fake_devices", Kind::kPositive, "1"},
    {"daemon.fake_device_memory", Kind::kSize, "1GiB"},
    {"daemon.device_pool", Kind::kSize, ""},
    {"daemon.max_concurrent_ingests", Kind::kPositive, "4"},
    {"daemon.copy_threads", Kind::kThreads, "0"},
    {"daemon.staging_buffers", Kind::kPositive, "8"},
    {"daemon.lanes", Kind::kChoice, "[ucx-rma, ucx]", "ucx-rma|ucx"},
    {"daemon.ucx_listen", Kind::kListenTcp, ""},
    {"daemon.ucx_data_ports", Kind::kPorts, ""},
    {"daemon.local_lane", Kind::kText, "true"},
    {"daemon.peer_timeout", Kind::kInterval, "10s"},
    {"daemon.max_connections", Kind::kConnections, "16384"},

    {"client.daemon", Kind::kServer, "unix:$STATE/daemon.sock"},
    {"client.connect_timeout", Kind::kInterval, "5s"},

    {"log.level", Kind::kChoice, "info", "info|warning|error"},
    {"log.format", Kind::kChoice, "text", "text|json"},

    // Defaults are in otel/sdk: not set here means them.
    {"observability.otel.exporter", Kind::kChoice, "", "otlp_grpc|otlp_http|console|jaeger|none"},
    {"observability.otel.timeout", Kind::kInterval, ""},
    {"observability.otel.retry_for", Kind::kInterval, ""},
    {"observability.otel.compression", Kind::kChoice, "", "none|gzip"},
    {"observability.otel.sampling_ratio", Kind::kRatio, ""},
    {"observability.otel.sampler", Kind::kChoice, "", "parent_ratio|ratio|always_on|always_off"},
    {"observability.otel.max_span_attributes", Kind::kCount, ""},
    {"observability.otel.max_span_events", Kind::kCount, ""},
    {"observability.otel.max_span_links", Kind::kCount, ""},
    {"observability.otel.max_attribute_bytes", Kind::kCount, ""},
    {"observability.otel.queue_size", Kind::kCount, ""},
    {"observability.otel.batch_size", Kind::kCount, ""},
    {"observability.otel.batch_interval", Kind::kInterval, ""},
    {"observability.otel.metric_interval", Kind::kInterval, ""},
    {"observability.otel.shutdown_timeout", Kind::kInterval, ""},
    {"observability.otel.log_level", Kind::kChoice, "", "info|warning|error"},
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Where a daemon of this user keeps its state unless told otherwise.
std::string StateDirectory() {
  if (geteuid() == 0) return "/var/lib/tensorcast";
  if (const std::string state = FromEnvironment("XDG_STATE_HOME"); !state.empty())
    return state + "/tensorcast";
  if (const std::string home = FromEnvironment("HOME"); !home.empty())
    return home + "/.local/state/tensorcast";
  return absl::StrCat("/tmp/tensorcast-", geteuid());
}

constexpr absl::Duration kShortest = absl::Milliseconds(1);
constexpr absl::Duration kLongest = absl::Hours(365 * 24);
constexpr int64_t kLargestCount = 1000000;
constexpr int64_t kMostThreads = 1024;

absl::Status CheckNumber(std::string_view text, int64_t least, int64_t most) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a number from ", least, " to ", most));
}

absl::Status CheckRatio(std::string_view text) {
  double ratio = 0;
  if (absl::SimpleAtod(text, &ratio) && ratio >= 0 && ratio <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number between 0 and 1"));
}

absl::Status CheckSize(std::string_view text) {
  TC_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is nothing; more than 0 bytes are needed"));
}

absl::Status CheckInterval(std::string_view text) {
  TC_ASSIGN_OR_RETURN(const absl::Duration duration, ParseDuration(text));
  if (duration >= kShortest && duration <= kLongest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not between 1ms and 365d"));
}

absl::Status CheckListenTcp(std::string_view text) {
  if (rpc::IsUnixAddress(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is a unix socket, and host:port is expected; see daemon.unix_socket"));
  }
  return rpc::CheckListenAddress(text);
}

absl::Status CheckAdvertise(std::string_view text) {
  TC_ASSIGN_OR_RETURN(const rpc::HostPort address, rpc::ParseHostPort(text));
  if (!rpc::IsWildcard(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" stands for every address of a machine; name the one that others connect to"));
}

absl::Status CheckChoice(std::string_view text, std::string_view choices) {
  for (std::string_view choice : absl::StrSplit(choices, '|')) {
    if (choice == text) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(absl::StrSplit(choices, '|'), ", ")));
}

}  // namespace

absl::Status CheckValue(std::string_view path, std::string_view text) {
  for (const Key& key : kKeys) {
    if (key.path != path) continue;
    if (text.empty()) {
      if (key.value.empty() || key.kind == Kind::kText) return absl::OkStatus();
      return absl::InvalidArgumentError("a value is needed here; leave the key out to have the default");
    }
    switch (key.kind) {
      case Kind::kText:
        return absl::OkStatus();
      case Kind::kSize:
        return CheckSize(text);
      case Kind::kInterval:
        return CheckInterval(text);
      case Kind::kCount:
        return CheckNumber(text, 0, kLargestCount);
      case Kind::kConnections:
        return CheckNumber(text, 1, kLargestCount);
      case Kind::kThreads:
        return CheckNumber(text, 0, kMostThreads);
      case Kind::kPositive:
        return CheckNumber(text, 1, kMostThreads);
      case Kind::kRatio:
        return CheckRatio(text);
      case Kind::kListen:
        return rpc::CheckListenAddress(text);
      case Kind::kListenTcp:
        return CheckListenTcp(text);
      case Kind::kAdvertise:
        return CheckAdvertise(text);
      case Kind::kServer:
        return rpc::CheckServerAddress(text);
      case Kind::kSocketPath:
        return rpc::CheckSocketPath(text);
      case Kind::kPorts:
        return ParsePorts(text).status();
      case Kind::kChoice:
        return CheckChoice(text, key.choices);
    }
  }
  return absl::OkStatus();
}

v1::Config Defaults() {
  v1::Config config;
  const std::string state = StateDirectory();
  for (const Key& key : kKeys) {
    if (key.value.empty()) continue;
    const std::string value = absl::StrReplaceAll(key.value, {{"$STATE", state}});
    CHECK_OK(SetByPath(config, key.path, value)) << "defaults.cc: " << key.path;
  }
  return config;
}

}  // namespace tensorcast::config
