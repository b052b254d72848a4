#include "core/replicas/device_pool.h"

#include <memory>

#include "core/device/testing/fault_hooks.h"
#include "gtest/gtest.h"

namespace tensorcast::device_pool_test {
namespace {

TEST(DevicePool, DevicePool_LimitsBudgetInWholeGranules) {
  auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 64 << 20});
  ASSERT_TRUE(devices.ok());
  DevicePool pool(devices->get(), 2 * kGranuleBytes);
  auto one = pool.Allocate(0, 1);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->bytes(), kGranuleBytes);
  EXPECT_EQ(pool.Allocate(0, kGranuleBytes + 1).status().code(), absl::StatusCode::kResourceExhausted);
  auto empty = pool.Allocate(0, 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->pointer());
  EXPECT_EQ(pool.stats(0).used_bytes, 2 * kGranuleBytes);
  *one = DeviceBlock();
  *empty = DeviceBlock();
  EXPECT_EQ(pool.stats(0).used_bytes, 0u);
  EXPECT_EQ(pool.stats(0).high_water_bytes, 2 * kGranuleBytes);
  EXPECT_EQ(pool.stats(0).failed_allocations, 1u);
}

TEST(DevicePool, DevicePool_DefaultsToNineTenthsOfDeviceMemory) {
  auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 100 << 20});
  ASSERT_TRUE(devices.ok());
  DevicePool pool(devices->get(), 0);
  EXPECT_EQ(pool.stats(0).capacity_bytes, uint64_t{90} << 20);
  EXPECT_EQ(pool.Allocate(1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.Allocate(-1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.stats(1).capacity_bytes, 0u);
}

TEST(DevicePool, DevicePool_ReturnsBudgetWhenDeviceAllocationFails) {
  auto faults = std::make_shared<DeviceFaults>();
  auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 64 << 20, .hooks = HooksOf(faults)});
  ASSERT_TRUE(devices.ok());
  DevicePool pool(devices->get(), 8 * kGranuleBytes);
  faults->fail_allocations = 1;
  EXPECT_FALSE(pool.Allocate(0, 1).ok());
  EXPECT_EQ(pool.stats(0).used_bytes, 0u);
  EXPECT_EQ(pool.stats(0).failed_allocations, 1u);
}

}  // namespace
}  // namespace tensorcast::device_pool_test
