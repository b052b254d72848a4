#include "daemon/telemetry/conservation.h"

#include "gmock/gmock.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::daemon::conservation_test {

using ::testing::HasSubstr;

constexpr uint64_t kChunk = 1 << 20;

struct Case {
  uint64_t asked, arrived, served;
};

v1::Conservation Compared(const Case& of) {
  PulledBytes pulled;
  pulled.asked = of.asked;
  pulled.arrived = of.arrived;
  Conservation conservation;
  conservation.ComparePull("g", "node-a", pulled, of.served);
  return conservation.status();
}

TEST(Conservation, PullThatWasNotCut_HoldsWhenAllAreEqual) {
  EXPECT_EQ(Compared({4 * kChunk, 4 * kChunk, 4 * kChunk}).violations(), 0);
  EXPECT_EQ(Compared({4 * kChunk, 4 * kChunk, 3 * kChunk}).violations(), 1) << "the source missed a chunk";
  EXPECT_EQ(Compared({4 * kChunk, 4 * kChunk, 5 * kChunk}).violations(), 1) << "nothing asked for it";
}

TEST(Conservation, PullCutShort_HoldsWithinWhatWasUnderWay) {
  for (const uint64_t served : {2 * kChunk, 2 * kChunk + 5, 4 * kChunk}) {
    EXPECT_EQ(Compared({4 * kChunk, 2 * kChunk, served}).violations(), 0) << served;
  }
  EXPECT_EQ(Compared({4 * kChunk, 2 * kChunk, kChunk}).violations(), 1);
}

TEST(Conservation, Violation_IsCountedAndNamed) {
  otel::testing::RecordedTelemetry recorded;
  const v1::Conservation status = Compared({kChunk, kChunk, 0});
  EXPECT_EQ(status.pulls_compared(), 1);
  EXPECT_THAT(status.last_violation(),
              HasSubstr("pull under grant g from node-a: the source served 0 bytes, and this node received"));
  Compared({kChunk, kChunk, kChunk});
  EXPECT_EQ(recorded.Sum(otel::metrics::kConservationChecks.id(), {"pull", "violated"}), 1);
  EXPECT_EQ(recorded.Sum(otel::metrics::kConservationChecks.id(), {"pull", "ok"}), 1);
}

}  // namespace tensorcast::daemon::conservation_test
