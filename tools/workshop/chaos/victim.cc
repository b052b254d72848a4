// The client process that chaos starts, and sometimes kills: it runs one operation and ends.
//   chaos_victim DAEMON[,DAEMON...] OPERATION ARTIFACT LOCATION LANE MODEL TIMEOUT_SECONDS --ready-fd N
// "get", "partial-get" and "cancelled-get" get at all of the daemons at once; all other operations use the
// first one. It writes a line to the descriptor when it is connected and about to begin; on success the
// artifact id is its last line of output. Exit codes: 0 done and every byte right, 1 the operation failed, 2
// usage, 3 a wrong byte.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"
#include "core/safetensors/safetensors.h"
#include "tensorcast/client.h"
#include "tools/workshop/chaos/chaos.h"
#include "tools/workshop/model/compare.h"

namespace tensorcast::chaos {
namespace {

constexpr int kAttaches = 30;
constexpr int kHeldLeases = 10;

struct Job {
  std::vector<std::string> daemons;
  std::string operation, artifact, location, lane, model;
  RequestContext context;
};

// Puts the tensors of a model file from this process's own memory.
absl::StatusOr<client::PutResult> Put(client::Client& client, const Job& job, bool durable) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(job.model));
  std::ifstream file(job.model, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<client::PutTensor> tensors;
  for (const Tensor& tensor : model.layout.tensors) {
    for (const ObjectExtent& extent : model.extents) {
      if (tensor.offset < extent.image_offset || tensor.offset >= extent.image_offset + extent.bytes) {
        continue;
      }
      const char* begin = bytes.data() + extent.object_offset + (tensor.offset - extent.image_offset);
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

absl::StatusOr<std::string> AttachOften(client::Client& client, const Job& job, DeviceRuntime& devices) {
  TC_ASSIGN_OR_RETURN(const Replicas held, Attach(client, job, kAttaches));
  TC_RETURN_IF_ERROR(CompareReplica(held.back()->tensors(), job.model, &devices).status());
  return held.back()->artifact_id();
}

using Clients = std::vector<std::unique_ptr<client::Client>>;

// How a get at one of the daemons differs from a plain one.
struct Wanted {
  std::vector<std::string> tensors = {};  // alone; empty: all
  bool given_up = false;                  // once its first bytes are there
};

bool UsedDifference(const client::Replica& replica) {
  const std::vector<SourceReport> none;
  return std::ranges::any_of(
      replica.transfer().has_value() ? replica.transfer()->sources : none,
      [](const SourceReport& source) { return source.source.lane == kDifferenceLane; });
}

// At all daemons at once, what is wanted of each. What is told in the end is where it failed, and how the
// first of those did: "at daemons 1 3: UNAVAILABLE: ...". `by_difference` counts where one was used.
absl::StatusOr<std::string> GetEverywhere(const Clients& clients, const Job& job, DeviceRuntime& devices,
                                          const std::vector<Wanted>& wanted,
                                          size_t* by_difference = nullptr) {
  std::vector<RequestContext> contexts(clients.size(), job.context);
  std::vector<std::unique_ptr<client::PendingGet>> gets;
  for (size_t i = 0; i < clients.size(); ++i) {
    client::GetOptions options{.location = job.location, .lane = job.lane, .tensors = wanted[i].tensors};
    if (wanted[i].given_up) {
      // Each get that is given up has a cancellation of its own: the others go on.
      contexts[i].cancellation = Cancellation();
      options.on_progress = [cancellation = contexts[i].cancellation](const TransferProgress& progress) {
        if (progress.bytes_done > 0) cancellation.Cancel();
      };
    }
    gets.push_back(clients[i]->StartGet(contexts[i], job.artifact, options));
  }
  absl::Status status;
  std::string failed_at, artifact_id;
  for (size_t i = 0; i < gets.size(); ++i) {
    const auto replica = gets[i]->Wait(SteadyTime::InfiniteFuture());  // the context ends it
    if (wanted[i].given_up && absl::IsCancelled(replica.status())) continue;
    absl::Status ended = replica.status();
    if (ended.ok()) {
      const auto& tensors = (*replica)->tensors();
      ended = (wanted[i].tensors.empty() ? CompareReplica(tensors, job.model, &devices)
                                         : ComparePart(tensors, wanted[i].tensors, job.model))
                  .status();
      artifact_id = (*replica)->artifact_id();
      if (by_difference != nullptr && UsedDifference(**replica)) ++*by_difference;
    }
    if (ended.ok()) continue;
    absl::StrAppend(&failed_at, " ", i);
    // Wrong bytes are worse than none.
    if (status.ok() || absl::IsDataLoss(ended)) status = ended;
  }
  if (status.ok()) return artifact_id;
  return absl::Status(status.code(), absl::StrCat("at daemons", failed_at, ": ", status.message()));
}

absl::StatusOr<std::string> GetEverywhere(const Clients& clients, const Job& job, DeviceRuntime& devices) {
  return GetEverywhere(clients, job, devices, std::vector<Wanted>(clients.size()));
}

// Half of the tensors each, another half at every daemon, then all.
absl::StatusOr<std::string> GetParts(const Clients& clients, const Job& job, DeviceRuntime& devices) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(job.model));
  const std::vector<Tensor>& tensors = model.layout.tensors;
  std::vector<Wanted> wanted(clients.size());
  for (size_t i = 0; i < clients.size(); ++i) {
    const size_t first = i * tensors.size() / clients.size();
    for (size_t j = 0; j < std::max<size_t>(tensors.size() / 2, 1); ++j) {
      wanted[i].tensors.push_back(tensors[(first + j) % tensors.size()].name);
    }
  }
  TC_RETURN_IF_ERROR(GetEverywhere(clients, job, devices, wanted).status());
  return GetEverywhere(clients, job, devices);
}

// Every other get is given up once its first bytes are there; then all are made after all.
absl::StatusOr<std::string> GetAfterCancelled(const Clients& clients, const Job& job,
                                              DeviceRuntime& devices) {
  std::vector<Wanted> wanted(clients.size());
  for (size_t i = 0; i < clients.size(); i += 2) wanted[i].given_up = true;
  TC_RETURN_IF_ERROR(GetEverywhere(clients, job, devices, wanted).status());
  return GetEverywhere(clients, job, devices);
}

// All daemons get the base artifact, the first one puts the next version as a difference from it, and all get
// that. The line before the last one says where differences were used.
absl::StatusOr<std::string> PublishNextVersion(const Clients& clients, const Job& job,
                                               DeviceRuntime& devices) {
  Job base = job;
  base.artifact = kBaseKey;
  base.model = absl::StrCat(job.model.substr(0, job.model.rfind('/') + 1), kBaseModel);
  // The followers need the base: otherwise the next version would come whole.
  TC_RETURN_IF_ERROR(GetEverywhere(clients, base, devices).status());
  const absl::StatusOr<client::PutResult> put =
      clients.front()->Import(job.context, job.model, {.key = job.artifact, .base = kBaseKey});
  if (!put.ok()) {
    return absl::Status(put.status().code(), absl::StrCat("at daemons 0: ", put.status().message()));
  }
  size_t by_difference = 0;
  TC_ASSIGN_OR_RETURN(
      std::string artifact_id,
      GetEverywhere(clients, job, devices, std::vector<Wanted>(clients.size()), &by_difference));
  std::printf("differences were used at %zu of %zu followers\n", by_difference, clients.size() - 1);
  return artifact_id;
}

// Looks at what it attached to again and again, for as long as it was given.
absl::StatusOr<std::string> Hold(client::Client& client, const Job& job, DeviceRuntime& devices) {
  TC_ASSIGN_OR_RETURN(const Replicas held, Attach(client, job, kHeldLeases));
  do {
    TC_RETURN_IF_ERROR(CompareReplica(held.back()->tensors(), job.model, &devices).status());
  } while (TimeLeft(job.context.deadline) > absl::ZeroDuration());
  return held.back()->artifact_id();
}

absl::StatusOr<std::string> Perform(const Clients& clients, const Job& job, DeviceRuntime& devices) {
  if (job.operation == "get") return GetEverywhere(clients, job, devices);
  if (job.operation == "partial-get") return GetParts(clients, job, devices);
  if (job.operation == "next-version") return PublishNextVersion(clients, job, devices);
  if (job.operation == "cancelled-get") return GetAfterCancelled(clients, job, devices);
  client::Client& client = *clients.front();
  if (job.operation == "attach") return AttachOften(client, job, devices);
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
  TC_ASSIGN_OR_RETURN(const auto devices, OpenDevices());
  Clients clients;
  for (const std::string& daemon : job.daemons) {
    TC_ASSIGN_OR_RETURN(clients.emplace_back(),
                        client::Client::Connect({.daemon = daemon, .devices = devices.get()}));
  }
  // Chaos counts the moment of its fault from this line on, not from the start of the process.
  if (write(ready_fd, "begin\n", 6) != 6) return absl::InternalError("the parent does not read");
  return Perform(clients, job, *devices);
}

}  // namespace
}  // namespace tensorcast::chaos

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  tensorcast::chaos::Job job{.daemons = absl::StrSplit(argv[1], ','),
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
  // One line: it is the last one that is read.
  std::printf("%s\n", absl::StrReplaceAll(artifact_id.status().ToString(), {{"\n", " "}}).c_str());
  return artifact_id.status().code() == absl::StatusCode::kDataLoss ? 3 : 1;
}
