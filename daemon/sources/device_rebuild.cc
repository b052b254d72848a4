#include "daemon/sources/device_rebuild.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/page_locked_memory.h"
#include "core/difference/change_lists.h"

namespace tensorcast::daemon {
namespace {

// One call of the device for the lists that the host has made.
std::vector<ElementChanges> ChangesAt(DevicePtr place, std::span<const ChangeList> lists) {
  std::vector<ElementChanges> changes;
  changes.reserve(lists.size());
  for (const ChangeList& list : lists) {
    changes.push_back({.begin = place + list.offset,
                       .elements = list.elements,
                       .width = list.width,
                       .kind = list.steps ? ElementChanges::Kind::kSteps : ElementChanges::Kind::kValues,
                       .places = list.places,
                       .operands = list.operands});
  }
  return changes;
}

// INTERNAL whatever the device said: only a damaged record is the difference's fault.
absl::Status OfDevice(int device, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("rebuild on gpu:", device, ": ", status.message()));
}

// By an event, so that the thread sleeps.
absl::Status Await(Stream& stream) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<Event> event, stream.Record());
  return event->Await();
}

}  // namespace

struct DeviceRebuild::Worker {
  explicit Worker(PageLockedMemory memory) : room(std::move(memory)) {}

  PageLockedMemory room;
  ChangeLists lists;
  std::unique_ptr<Stream> stream;  // last: its destructor waits for what reads the room

  absl::Status Rebuild(DecoderPath path, uint32_t chunk, DevicePtr base, DevicePtr place, uint64_t bytes);
};

absl::Status DeviceRebuild::Worker::Rebuild(DecoderPath path, uint32_t chunk, DevicePtr base, DevicePtr place,
                                            uint64_t bytes) {
  const auto on_device = [place](const absl::Status& status) { return OfDevice(place.device, status); };
  // First, so that the device copies while the host reads the records.
  TC_RETURN_IF_ERROR(on_device(stream->CopyOnDevice(place, base, bytes)));
  TC_RETURN_IF_ERROR(lists.Begin(path, chunk));
  std::span<std::byte> left = room.bytes();
  while (!lists.done()) {
    TC_ASSIGN_OR_RETURN(const ChangeLists::Part part, lists.Next(left));
    if (part.lists.empty()) {
      // The device reads the lists until it has applied them.
      TC_RETURN_IF_ERROR(on_device(Await(*stream)));
      left = room.bytes();
      continue;
    }
    left = left.subspan(part.bytes);
    // A call for each difference: its changes may be of elements that the previous one changed.
    TC_RETURN_IF_ERROR(on_device(stream->Change(ChangesAt(place, part.lists))));
  }
  return on_device(Await(*stream));
}

absl::StatusOr<std::unique_ptr<DeviceRebuild>> DeviceRebuild::Open(DeviceRuntime* devices, int from, int to,
                                                                   uint64_t list_bytes) {
  if (!devices->devices()[to].runs_kernels) {
    return absl::UnimplementedError(absl::StrCat(
        "rebuild on gpu:", to, ": the daemon cannot run kernels on this GPU; rebuild on the host"));
  }
  if (!devices->Reaches(to, from)) {
    return absl::UnimplementedError(absl::StrCat(
        "rebuild on gpu:", to, ": this GPU cannot reach the memory of gpu:", from, "; rebuild on the host"));
  }
  std::unique_ptr<DeviceRebuild> rebuild(new DeviceRebuild(devices, to, list_bytes));
  // Shows now whether memory can be locked; the source could not go back to the host later.
  TC_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, rebuild->Take());
  rebuild->GiveBack(std::move(worker));
  return rebuild;
}

DeviceRebuild::DeviceRebuild(DeviceRuntime* devices, int to, uint64_t list_bytes)
    : devices_(devices), device_(to), list_bytes_(list_bytes) {}

DeviceRebuild::~DeviceRebuild() = default;

absl::Status DeviceRebuild::Rebuild(DecoderPath path, uint32_t chunk, DevicePtr base, DevicePtr place,
                                    uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<Worker>> taken = Take();
  if (!taken.ok()) return OfDevice(device_, taken.status());
  std::unique_ptr<Worker> worker = *std::move(taken);
  const absl::Status rebuilt = worker->Rebuild(path, chunk, base, place, bytes);
  // After an error work may still run. The end of the worker waits for it, and a stream that failed is not
  // used again.
  if (rebuilt.ok()) GiveBack(std::move(worker));
  return rebuilt;
}

absl::StatusOr<std::unique_ptr<DeviceRebuild::Worker>> DeviceRebuild::Take() {
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Worker> worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  TC_ASSIGN_OR_RETURN(PageLockedMemory memory, PageLockedMemory::Create(devices_, list_bytes_));
  auto worker = std::make_unique<Worker>(std::move(memory));
  TC_ASSIGN_OR_RETURN(worker->stream, devices_->CreateStream(device_));
  return worker;
}

void DeviceRebuild::GiveBack(std::unique_ptr<Worker> worker) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(worker));
}

}  // namespace tensorcast::daemon
