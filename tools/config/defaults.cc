#include "tools/config/defaults.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/config/config.h"
#include "tools/config/setter.h"
#include "tools/config/units.h"

namespace tensorcast::config {
namespace {

enum class Kind { kText, kSize, kDuration, kCount, kPositive, kChoice };

struct Key {
  std::string_view path;
  Kind kind;
  std::string_view value;         // the default, as --set would write it; $STATE is StateDirectory()
  std::string_view choices = {};  // of kChoice: "a|b|c"
};

constexpr Key kKeys[] = {
    {"global_store.listen", Kind::kText, "127.0.0.1:7000"},
    {"global_store.metadata_store", Kind::kChoice, "sqlite", "sqlite|memory"},
    {"global_store.metadata_path", Kind::kText, "$STATE/global_store.db"},
    {"global_store.heartbeat_interval", Kind::kDuration, "2s"},
    {"global_store.node_ttl", Kind::kDuration, "10s"},
    {"global_store.grant_ttl", Kind::kDuration, "30s"},
    {"global_store.max_connections", Kind::kPositive, "16384"},

    {"daemon.listen", Kind::kText, "127.0.0.1:7001"},
    {"daemon.state_dir", Kind::kText, "$STATE"},
    {"daemon.host_pool", Kind::kSize, "4GiB"},
    {"daemon.huge_pages", Kind::kText, "true"},
    {"daemon.device_runtime", Kind::kChoice, "auto", "auto|cuda|none|fake"},
    {"daemon.fake_devices", Kind::kCount, "1"},
    {"daemon.fake_device_memory", Kind::kSize, "1GiB"},
    {"daemon.device_pool", Kind::kSize, ""},
    // Everything that the daemon's user may read; what was imported can be read only by those whom the handle
    // socket admits.
    {"daemon.import_roots", Kind::kText, "[/]"},
    {"daemon.max_concurrent_ingests", Kind::kPositive, "4"},
    {"daemon.copy_threads", Kind::kCount, "0"},
    {"daemon.staging_buffers", Kind::kPositive, "8"},
    {"daemon.lanes", Kind::kChoice, "[ucx-rma, ucx]", "ucx-rma|ucx|loopback"},
    {"daemon.ucx_listen", Kind::kText, "127.0.0.1:0"},
    {"daemon.local_lane", Kind::kText, "true"},
    {"daemon.peer_timeout", Kind::kDuration, "10s"},
    {"daemon.max_connections", Kind::kPositive, "16384"},

    {"client.daemon", Kind::kText, "unix:$STATE/daemon.sock"},
    {"client.connect_timeout", Kind::kDuration, "5s"},

    {"log.level", Kind::kChoice, "info", "info|warning|error"},
    {"log.format", Kind::kChoice, "text", "text|json"},

    // Defaults are in otel/sdk: not set here means them.
    {"observability.otel.exporter", Kind::kChoice, "", "otlp_grpc|otlp_http|console|jaeger|none"},
    {"observability.otel.timeout", Kind::kDuration, ""},
    {"observability.otel.compression", Kind::kChoice, "", "none|gzip"},
    {"observability.otel.sampler", Kind::kChoice, "", "parent_ratio|always_on|always_off"},
    {"observability.otel.max_span_attributes", Kind::kCount, ""},
    {"observability.otel.max_span_events", Kind::kCount, ""},
    {"observability.otel.max_span_links", Kind::kCount, ""},
    {"observability.otel.max_attribute_bytes", Kind::kCount, ""},
    {"observability.otel.queue_size", Kind::kCount, ""},
    {"observability.otel.batch_size", Kind::kCount, ""},
    {"observability.otel.batch_interval", Kind::kDuration, ""},
    {"observability.otel.metric_interval", Kind::kDuration, ""},
    {"observability.otel.shutdown_timeout", Kind::kDuration, ""},
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

absl::Status CheckNumber(std::string_view text, int64_t least) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number from ", least));
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
  if (text.empty()) return absl::OkStatus();
  for (const Key& key : kKeys) {
    if (key.path != path) continue;
    switch (key.kind) {
      case Kind::kText:
        return absl::OkStatus();
      case Kind::kSize:
        return ParseSize(text).status();
      case Kind::kDuration:
        return ParseDuration(text).status();
      case Kind::kCount:
        return CheckNumber(text, 0);
      case Kind::kPositive:
        return CheckNumber(text, 1);
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
