// Linked into a test: gives it, and the processes that it starts, a host with GPUs of the stand-in.
#include <gtest/gtest.h>

#include <memory>

#include "tests/stand_ins/cuda/host_gpus.h"

namespace tensorcast::stand_ins {
namespace {

class WithHostGpus : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!StandInHost::IsThere()) {
      host_ = StandInHost::Make(/*gpus=*/4, /*bytes_each=*/uint64_t{64} << 20).value();
    }
  }
  void TearDown() override { host_.reset(); }

 private:
  std::unique_ptr<StandInHost> host_;
};

[[maybe_unused]] const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new WithHostGpus);

}  // namespace
}  // namespace tensorcast::stand_ins
