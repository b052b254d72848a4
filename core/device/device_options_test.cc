#include "core/device/device_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorcast::device_options_test {
namespace {

using ::testing::HasSubstr;

TEST(DeviceOptions, OpenDevices_OpensTheNamedRuntime) {
  const auto none = OpenDevices({.runtime = "none"});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)->backend(), "none");
  const auto fake =
      OpenDevices({.runtime = "fake", .fake_devices = 2, .fake_device_bytes = uint64_t{4} << 20});
  ASSERT_TRUE(fake.ok()) << fake.status();
  ASSERT_EQ((*fake)->devices().size(), 2u);
  EXPECT_EQ((*fake)->devices()[0].total_bytes, uint64_t{4} << 20);
}

TEST(DeviceOptions, AutoDeviceRuntime_FindsHostDevicesAndNeverFakeOnes) {
  const auto found = OpenDevices({.runtime = "auto"});
  ASSERT_TRUE(found.ok()) << found.status();
  const auto cuda = OpenDevices({.runtime = "cuda"});
  EXPECT_EQ((*found)->backend(), cuda.ok() ? "cuda" : "none");
  EXPECT_TRUE(cuda.ok() || absl::IsUnavailable(cuda.status())) << cuda.status();
}

TEST(DeviceOptions, UnknownDeviceRuntime_IsRefusedWithValidNames) {
  const absl::Status refused = OpenDevices({.runtime = "gpu"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("\"gpu\": the name is unknown; use auto, cuda, none or fake"));
}

}  // namespace
}  // namespace tensorcast::device_options_test
