// An engine that turns telemetry on; its spans go nowhere.
#include <tensorcast/telemetry.h>

#include <cstdio>

int main() {
  const auto telemetry = tensorcast::client::StartTelemetry({.exporter = "none"});
  if (!telemetry.ok()) std::fprintf(stderr, "%s\n", telemetry.status().ToString().c_str());
  return telemetry.ok() ? 0 : 1;
}
