// NCCL as a CollectiveLibrary.
#include <nccl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collective/communicator.h"
#include "collective/nccl/functions.h"
#include "collective/nccl/nccl_communicator.h"

namespace tensorcast {
namespace {

class NcclLibrary final : public CollectiveLibrary {
 public:
  NcclLibrary(NcclFunctions nccl, DeviceRuntime& devices) : nccl_(std::move(nccl)), devices_(devices) {}

  std::string version() const override { return nccl_.version; }

  absl::StatusOr<CommunicatorId> MakeId() override {
    ncclUniqueId id;
    TC_RETURN_IF_ERROR(NcclStatus(nccl_, nccl_.get_unique_id(&id), "make a communicator's id", nullptr));
    return CommunicatorId{.bytes = std::string(id.internal, sizeof(id.internal))};
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext& context, const CommunicatorId& id,
                                                     int world_size,
                                                     absl::Span<const RankDevice> ranks) override {
    return NcclCommunicator::Join(nccl_, devices_, context, id, world_size, ranks);
  }

 private:
  const NcclFunctions nccl_;
  DeviceRuntime& devices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveLibrary>> LoadNccl(const std::string& path, DeviceRuntime* devices) {
  if (devices->backend() != "cuda") {
    return absl::UnavailableError(
        absl::StrCat("load NCCL: NCCL needs NVIDIA GPUs, and this process uses the device backend ",
                     devices->backend(), "; use NCCL only with the device backend cuda"));
  }
  TC_ASSIGN_OR_RETURN(NcclFunctions nccl, FindNccl(path));
  return std::make_unique<NcclLibrary>(std::move(nccl), *devices);
}

}  // namespace tensorcast
