// The faults of a test as hooks of the fake devices, for FakeDeviceOptions::hooks.
//
// A program that was built with them for another process to switch (tests/e2e/device_faults_hooks.cc) finds
// their file by its environment. Thread-safe.
#pragma once

#include <memory>

#include "core/device/fake_device.h"
#include "core/device/testing/device_faults.h"

namespace tensorcast {

std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<DeviceFaults> faults);

}  // namespace tensorcast
