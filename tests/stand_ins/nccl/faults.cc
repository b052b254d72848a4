#include "tests/stand_ins/nccl/faults.h"

#include "base/status.h"
#include "base/testing/shared_file.h"

namespace tensorcast::stand_ins {

absl::StatusOr<std::shared_ptr<NcclFaults>> OpenNcclFaults(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<void> file,
                      tensorcast::testing::OpenSharedFile(path, sizeof(NcclFaults)));
  return std::static_pointer_cast<NcclFaults>(file);
}

}  // namespace tensorcast::stand_ins
