// Stands in for load_nccl.cc where nccl.h was not found.
#include "collective/communicator.h"

namespace tensorcast {

absl::StatusOr<std::unique_ptr<CollectiveLibrary>> LoadNccl(const std::string&, DeviceRuntime*) {
  return absl::UnavailableError(
      "load NCCL: this binary was built without NCCL; install NCCL's header and the CUDA toolkit, and build "
      "TensorCast again");
}

}  // namespace tensorcast
