// Makes hooks of the fake devices from the faults of a test, for FakeDeviceOptions::hooks. Thread-safe.
//
// A program can be built with such hooks, so that a test in another process switches its faults
// (tests/e2e/device_faults_hooks.cc). The program finds the file of the faults by an environment variable.
#pragma once

#include <memory>

#include "core/device/fake_device.h"
#include "core/device/testing/device_faults.h"

namespace tensorcast {

std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<DeviceFaults> faults);

}  // namespace tensorcast
