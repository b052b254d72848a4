#include "tests/stand_ins/test_gpus.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/stand_ins/cuda/host_gpus.h"

namespace tensorcast::stand_ins {
namespace {

constexpr int kNodes = kMaxGpus / kGpusPerNode;

// Goes when this process ends. A process that was started on one makes none.
void MakeHost() {
  static const std::unique_ptr<StandInHost> host =
      StandInHost::IsThere() ? nullptr : StandInHost::Make(kMaxGpus, kBytesPerGpu).value();
}

}  // namespace

std::string BinaryWithGpus() { return TENSORCAST_ON_STAND_INS_BINARY; }
std::string BinaryWithGpuFaults() { return BinaryWithGpus(); }

std::vector<std::string> GpuSettings() { return {"daemon.device_runtime=cuda"}; }

std::vector<std::pair<std::string, std::string>> GpuEnvironment(int node) {
  MakeHost();
  const int first = node % kNodes * kGpusPerNode;
  return {{"CUDA_VISIBLE_DEVICES", absl::StrCat(first, ",", first + 1)}};
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenClientGpus() {
  MakeHost();
  return CreateCudaRuntime();
}

}  // namespace tensorcast::stand_ins
