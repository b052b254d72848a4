#include "tensorcast/telemetry.h"

#include <gtest/gtest.h>

#include "otel/api/span.h"

namespace tensorcast::client {
namespace {

TEST(StartTelemetry, StartTelemetry_LastsUntilLastCopyIsGone) {
  EXPECT_FALSE(otel::IsTracing());
  {
    auto telemetry = StartTelemetry({.exporter = "console"});
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    const std::shared_ptr<void> copy = *telemetry;
    telemetry->reset();
    EXPECT_TRUE(otel::IsTracing());
    EXPECT_TRUE(absl::IsFailedPrecondition(StartTelemetry({.exporter = "console"}).status()));
  }
  EXPECT_FALSE(otel::IsTracing());
  EXPECT_TRUE(StartTelemetry({.exporter = "console"}).ok());
}

TEST(StartTelemetry, StartTelemetryWithWrongExporter_NamesIt) {
  const absl::Status status = StartTelemetry({.exporter = "pigeons"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("pigeons"), std::string::npos) << status;
}

}  // namespace
}  // namespace tensorcast::client
