// The client process that chaos starts, and sometimes kills: one operation, then the end.
//   chaos_victim DAEMON OPERATION ARTIFACT LOCATION LANE MODEL TIMEOUT_SECONDS --ready-fd N
// It writes a line to the descriptor when it is connected and about to begin; on success the artifact id is
// its last line of output. Exit codes: 0 done and every byte right, 1 the operation failed, 2 usage, 3 a
// wrong byte.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "cli/model/compare.h"
#include "core/device/fake_device.h"
#include "core/safetensors/safetensors.h"
#include "tensorcast/client.h"

namespace tensorcast::chaos {
namespace {

constexpr int kAttaches = 30;
constexpr int kHeldLeases = 10;

struct Job {
  std::string daemon, operation, artifact, location, lane, model;
  RequestContext context;
};

// Puts the tensors of a model file from this process's own memory.
absl::StatusOr<client::PutResult> Put(client::Client& client, const Job& job, bool durable) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(job.model));
  std::ifstream file(job.model, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<client::PutTensor> tensors;
  for (const Tensor& tensor : model.layout.tensors) {
    for (const FileExtent& extent : model.extents) {
      if (tensor.offset < extent.image_offset || tensor.offset >= extent.image_offset + extent.bytes) {
        continue;
      }
      const char* begin = bytes.data() + extent.file_offset + (tensor.offset - extent.image_offset);
      tensors.push_back({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .bytes = {reinterpret_cast<const std::byte*>(begin), tensor.nbytes}});
    }
  }
  return client.Put(job.context, tensors, {},
                    {.key = job.artifact, .durable = durable, .location = job.location});
}

using Replicas = std::vector<std::unique_ptr<client::Replica>>;

absl::StatusOr<Replicas> Attach(client::Client& client, const Job& job, int times) {
  Replicas held;
  for (int i = 0; i < times; ++i) {
    TC_ASSIGN_OR_RETURN(held.emplace_back(),
                        client.Get(job.context, job.artifact, {.location = job.location, .lane = job.lane}));
  }
  return held;
}

absl::StatusOr<std::string> Get(client::Client& client, const Job& job, DeviceRuntime& devices, int times) {
  TC_ASSIGN_OR_RETURN(const Replicas held, Attach(client, job, times));
  TC_RETURN_IF_ERROR(CompareReplica(held.back()->tensors(), job.model, &devices).status());
  return held.back()->artifact_id();
}

// Looks at what it attached to again and again, for as long as it was given.
absl::StatusOr<std::string> Hold(client::Client& client, const Job& job, DeviceRuntime& devices) {
  TC_ASSIGN_OR_RETURN(const Replicas held, Attach(client, job, kHeldLeases));
  do {
    TC_RETURN_IF_ERROR(CompareReplica(held.back()->tensors(), job.model, &devices).status());
  } while (TimeLeft(job.context.deadline) > absl::ZeroDuration());
  return held.back()->artifact_id();
}

absl::StatusOr<std::string> Perform(client::Client& client, const Job& job, DeviceRuntime& devices) {
  if (job.operation == "get") return Get(client, job, devices, 1);
  if (job.operation == "attach") return Get(client, job, devices, kAttaches);
  if (job.operation == "hold") return Hold(client, job, devices);
  absl::StatusOr<client::PutResult> put;
  if (job.operation == "import") {
    put = client.Import(job.context, job.model, {.key = job.artifact, .durable = true});
  } else if (job.operation == "put" || job.operation == "durable-put") {
    put = Put(client, job, job.operation == "durable-put");
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown operation ", job.operation));
  }
  TC_RETURN_IF_ERROR(put.status());
  return put->artifact_id;
}

absl::StatusOr<std::string> Run(const Job& job, int ready_fd) {
  TC_ASSIGN_OR_RETURN(const auto devices, CreateFakeRuntime({.device_count = 1}));
  TC_ASSIGN_OR_RETURN(const auto client,
                      client::Client::Connect({.daemon = job.daemon, .devices = devices.get()}));
  if (write(ready_fd, "begin\n", 6) != 6) return absl::InternalError("nobody listens");
  return Perform(*client, job, *devices);
}

}  // namespace
}  // namespace tensorcast::chaos

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  tensorcast::chaos::Job job{.daemon = argv[1],
                             .operation = argv[2],
                             .artifact = argv[3],
                             .location = argv[4],
                             .lane = argv[5],
                             .model = argv[6]};
  job.context = tensorcast::RequestContext::Background(absl::Seconds(std::atoi(argv[7])));
  const absl::StatusOr<std::string> artifact_id = tensorcast::chaos::Run(job, std::atoi(argv[9]));
  if (artifact_id.ok()) {
    std::printf("%s\n", artifact_id->c_str());
    return 0;
  }
  std::printf("%s\n", artifact_id.status().ToString().c_str());
  return artifact_id.status().code() == absl::StatusCode::kDataLoss ? 3 : 1;
}
