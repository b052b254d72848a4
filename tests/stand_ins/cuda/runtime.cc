#include "tests/stand_ins/cuda/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace tensorcast::stand_ins {
namespace {

// What memory is handed out in: cudaIpcGetMemHandle exposes whole blocks of it, whatever was asked for.
constexpr uint64_t kIpcGranularity = uint64_t{2} << 20;

[[noreturn]] void Wrong(std::string_view what) { Violation("cuda", what); }

// The bit by which a kernel's address of host memory differs from the host's: processes have no addresses as
// high as that.
constexpr uint64_t kHostSeenByDevice = uint64_t{1} << 62;

// All of it, by this process.
bool IsWritable(const void* base, uint64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(base);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t from = 0;
    uint64_t to = 0;
    char dash;
    std::string rights;
    std::istringstream(line) >> std::hex >> from >> dash >> to >> rights;
    if (from < begin + bytes && begin < to && rights.find('w') == std::string::npos) return false;
  }
  return true;
}

// Which GPUs of the host CUDA_VISIBLE_DEVICES lets the process see, in its order: by number. As in
// CUDA the first one that is not there ends the list.
std::vector<int> VisibleGpus(const HostGpus& host) {
  std::vector<int> visible;
  const char* const wanted = std::getenv("CUDA_VISIBLE_DEVICES");
  if (wanted == nullptr) {
    for (int gpu = 0; gpu < host.count(); ++gpu) visible.push_back(gpu);
    return visible;
  }
  for (const std::string_view name : absl::StrSplit(wanted, ',', absl::SkipWhitespace())) {
    int gpu = -1;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(name), &gpu) || gpu < 0 || gpu >= host.count()) break;
    visible.push_back(gpu);
  }
  return visible;
}

}  // namespace

int& CurrentGpu() {
  thread_local int current = 0;
  return current;
}

Runtime* Runtime::Get() {
  static Runtime* const runtime = Open();
  return runtime;
}

Runtime* Runtime::Open() {
  const char* const path = std::getenv(kGpusVariable);
  if (path == nullptr) return nullptr;
  absl::StatusOr<std::unique_ptr<HostGpus>> host = HostGpus::Open(path);
  // A path that names no host is a mistake of the test, and not a machine without GPUs.
  if (!host.ok()) Wrong(host.status().ToString());
  std::vector<int> visible = VisibleGpus(**host);
  if (visible.empty()) return nullptr;
  return new Runtime(*std::move(host), std::move(visible));
}

cudaError_t Runtime::Check() const {
  if (getpid() != pid_) return cudaErrorInitializationError;
  return poisoned_[CurrentGpu()].load() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t Runtime::Properties(cudaDeviceProp* properties, int gpu) {
  if (gpu < 0 || gpu >= count()) return cudaErrorInvalidDevice;
  *properties = cudaDeviceProp();
  std::strncpy(properties->name, "stand-in GPU", sizeof(properties->name) - 1);
  const GpuUuid uuid = host_->uuid(visible_[gpu]);
  static_assert(sizeof(properties->uuid.bytes) == sizeof(uuid));
  std::memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
  properties->totalGlobalMem = host_->bytes();
  properties->pciBusID = visible_[gpu] + 1;
  properties->major = 9;
  properties->asyncEngineCount = 2;
  properties->unifiedAddressing = 1;
  properties->hostRegisterReadOnlySupported = 1;
  return cudaSuccess;
}

cudaError_t Runtime::MemoryInfo(size_t* free, size_t* total) {
  *free = host_->free_bytes(visible_[CurrentGpu()]);
  *total = host_->bytes();
  return cudaSuccess;
}

cudaError_t Runtime::Allocate(void** pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (faults_ != nullptr && faults_->TakeAllocationFault()) return cudaErrorMemoryAllocation;
  absl::StatusOr<std::shared_ptr<GpuMemory>> memory = host_->Allocate(visible_[CurrentGpu()], bytes);
  if (absl::IsResourceExhausted(memory.status())) return cudaErrorMemoryAllocation;
  if (!memory.ok()) Wrong(memory.status().ToString());
  absl::MutexLock lock(&mutex_);
  *pointer = Add(*std::move(memory));
  return cudaSuccess;
}

cudaError_t Runtime::Free(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const std::shared_ptr<GpuMemory> memory = Remove(pointer, /*imported=*/false);
  if (memory == nullptr) return cudaErrorInvalidValue;
  host_->Free(*memory);
  return cudaSuccess;
}

cudaError_t Runtime::PointerAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -1;
  absl::MutexLock lock(&mutex_);
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (const auto after = memory_.upper_bound(address); after != memory_.begin()) {
    const GpuMemory& memory = *std::prev(after)->second;
    if (address - memory.address() < memory.bytes()) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = static_cast<int>(std::ranges::find(visible_, memory.gpu()) - visible_.begin());
      attributes->devicePointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
  }
  for (const auto& [base, range] : pinned_) {
    if (address - base < range.bytes) attributes->type = cudaMemoryTypeHost;
  }
  return cudaSuccess;
}

cudaError_t Runtime::RegisterHost(void* base, size_t bytes, unsigned int flags) {
  if (base == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if ((flags & cudaHostRegisterReadOnly) == 0 && !IsWritable(base, bytes)) return cudaErrorInvalidValue;
  absl::MutexLock lock(&mutex_);
  const auto address = reinterpret_cast<uint64_t>(base);
  for (const auto& [other, range] : pinned_) {
    if (other < address + bytes && address < other + range.bytes) return cudaErrorHostMemoryAlreadyRegistered;
  }
  pinned_[address] = {.bytes = bytes, .mapped = (flags & cudaHostRegisterMapped) != 0};
  return cudaSuccess;
}

cudaError_t Runtime::UnregisterHost(void* base) {
  absl::MutexLock lock(&mutex_);
  const auto range = pinned_.find(reinterpret_cast<uint64_t>(base));
  if (range == pinned_.end()) return cudaErrorHostMemoryNotRegistered;
  if (const std::string wrong = order_.Release(range->first, range->second.bytes); !wrong.empty()) {
    Wrong(wrong);
  }
  pinned_.erase(range);
  return cudaSuccess;
}

cudaError_t Runtime::HostGetDevicePointer(void** device, void* host, unsigned int flags) {
  const auto address = reinterpret_cast<uint64_t>(host);
  absl::MutexLock lock(&mutex_);
  if (flags != 0 || !IsMapped(address, 1)) return cudaErrorInvalidValue;
  *device = reinterpret_cast<void*>(address ^ kHostSeenByDevice);
  return cudaSuccess;
}

cudaError_t Runtime::GetHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  absl::MutexLock lock(&mutex_);
  const auto memory = memory_.find(reinterpret_cast<uint64_t>(pointer));
  if (memory == memory_.end() || memory->second->imported()) return cudaErrorInvalidValue;
  CheckGpu(memory->second->gpu(), "cudaIpcGetMemHandle");
  if (memory->second->bytes() % kIpcGranularity != 0) {
    Wrong(absl::StrCat("a handle of ", memory->second->bytes(),
                       " bytes exposes whatever else lies in the last ", kIpcGranularity,
                       " of them: allocate whole ones"));
  }
  const GpuMemoryHandle exported = host_->Export(*memory->second);
  static_assert(sizeof(exported) <= sizeof(handle->reserved));
  std::memset(handle->reserved, 0, sizeof(handle->reserved));
  std::memcpy(handle->reserved, &exported, sizeof(exported));
  return cudaSuccess;
}

cudaError_t Runtime::OpenHandle(void** pointer, const cudaIpcMemHandle_t& handle, unsigned int flags) {
  if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
  GpuMemoryHandle exported;
  std::memcpy(&exported, handle.reserved, sizeof(exported));
  absl::MutexLock lock(&mutex_);
  // As documented: the same address once more, to be closed as often.
  if (const auto open = imported_.find(exported.id); open != imported_.end()) {
    ++open->second.opens;
    *pointer = reinterpret_cast<void*>(open->second.address);
    return cudaSuccess;
  }
  // A process cannot open a handle of its own memory.
  for (const auto& [address, memory] : memory_) {
    if (!memory->imported() && host_->Export(*memory).id == exported.id) return cudaErrorDeviceUninitialized;
  }
  absl::StatusOr<std::shared_ptr<GpuMemory>> memory = host_->Import(exported);
  if (absl::IsNotFound(memory.status())) return cudaErrorMapBufferObjectFailed;
  if (!memory.ok()) return cudaErrorInvalidValue;
  CheckGpu((*memory)->gpu(), "cudaIpcOpenMemHandle");
  *pointer = Add(*std::move(memory));
  imported_[exported.id] = {.address = reinterpret_cast<uint64_t>(*pointer), .opens = 1};
  return cudaSuccess;
}

cudaError_t Runtime::CloseHandle(void* pointer) {
  {
    absl::MutexLock lock(&mutex_);
    auto open = imported_.begin();
    while (open != imported_.end() && open->second.address != reinterpret_cast<uint64_t>(pointer)) ++open;
    if (open == imported_.end()) return cudaErrorInvalidValue;
    if (--open->second.opens > 0) return cudaSuccess;
    imported_.erase(open);
  }
  return Remove(pointer, /*imported=*/true) != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t Runtime::CreateStream(cudaStream_t* stream) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = ++last_stream_;
  auto made = std::make_shared<CUstream_st>(CurrentGpu(), id);
  *stream = made.get();
  streams_[*stream] = std::move(made);
  return cudaSuccess;
}

cudaError_t Runtime::DestroyStream(cudaStream_t stream) {
  // Its destructor joins the stream's thread, so it runs after the lock is released: an operation on that
  // thread may need the lock (DropImports).
  std::shared_ptr<CUstream_st> destroyed;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
    destroyed = std::move(found->second);
    streams_.erase(found);
  }
  if (!destroyed->IsDone(destroyed->last())) Wrong("a stream is destroyed before what is on it is done");
  return cudaSuccess;
}

cudaError_t Runtime::SynchronizeStream(cudaStream_t stream) {
  const std::shared_ptr<CUstream_st> found = Find(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  uint64_t last;
  HappensBefore::Clock clock;
  {
    absl::MutexLock lock(&mutex_);
    // What is enqueued during the wait is neither waited for nor known to the host. So the number and the
    // clock are taken together, before the wait, and the wait is without the lock: other threads go on.
    last = found->last();
    clock = order_.Record(found->id);
  }
  const cudaError_t error = found->Await(last);
  absl::MutexLock lock(&mutex_);
  order_.HostWaited(clock);
  return error;
}

cudaError_t Runtime::QueryStream(cudaStream_t stream) {
  const std::shared_ptr<CUstream_st> found = Find(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  absl::MutexLock lock(&mutex_);
  const uint64_t last = found->last();
  if (!found->IsDone(last)) return cudaErrorNotReady;
  order_.HostWaited(order_.Record(found->id));
  return found->Await(last);
}

// The lock is held from the check of the order until the operation is enqueued. So order_ numbers the
// operations of a stream as the stream runs them. An operation holds the memory of its ends, because
// DropImports may take it out of memory_ before the operation runs.
cudaError_t Runtime::EnqueueCopy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                                 cudaStream_t stream) {
  const std::shared_ptr<CUstream_st> found = Find(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  CheckGpu(visible_[found->gpu], "cudaMemcpyAsync on a stream");
  absl::MutexLock lock(&mutex_);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!to_device && !from_device) return cudaErrorInvalidMemcpyDirection;
  const End to = EndOf(destination, bytes);
  const End from = EndOf(source, bytes);
  if ((to.memory != nullptr) != to_device || (from.memory != nullptr) != from_device) {
    return cudaErrorInvalidValue;
  }
  const std::string wrong =
      order_.Enqueue(found->id, {{reinterpret_cast<uint64_t>(source), bytes, /*write=*/false},
                                 {reinterpret_cast<uint64_t>(destination), bytes, /*write=*/true}});
  if (!wrong.empty()) Wrong(wrong);
  Copy copy{.gpu = found->gpu,
            .stream = found->id,
            .direction = !to_device     ? CopyDirection::kToHost
                         : !from_device ? CopyDirection::kToDevice
                                        : CopyDirection::kOnDevice,
            .destination = to.at,
            .source = from.at,
            .bytes = bytes};
  const int gpu = visible_[found->gpu];
  if (to_device && from_device && !(Reaches(gpu, *to.memory) && Reaches(gpu, *from.memory))) {
    // Without peer access the copy goes through the host, in two operations that the timeline shows as such.
    const auto bounce = std::make_shared<std::vector<std::byte>>(bytes);
    Copy first = copy;
    first.direction = CopyDirection::kToHost;
    first.destination = bounce->data();
    found->Enqueue([this, first, from, bounce] { return Run(first); });
    copy.direction = CopyDirection::kToDevice;
    copy.source = bounce->data();
    found->Enqueue([this, copy, to, bounce] { return Run(copy); });
    return cudaSuccess;
  }
  found->Enqueue([this, copy, to, from] { return Run(copy); });
  return cudaSuccess;
}

cudaError_t Runtime::EnqueueWork(void* memory, size_t bytes, bool write, cudaStream_t stream,
                                 StreamWork work) {
  const std::shared_ptr<CUstream_st> found = Find(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  CheckGpu(visible_[found->gpu], "work on a stream");
  absl::MutexLock lock(&mutex_);
  const End end = EndOf(memory, bytes);
  if (end.memory == nullptr) return cudaErrorInvalidValue;
  if (end.memory->gpu() != visible_[found->gpu]) Wrong("work on a stream of one GPU uses memory of another");
  const std::string wrong = order_.Enqueue(found->id, {{reinterpret_cast<uint64_t>(memory), bytes, write}});
  if (!wrong.empty()) Wrong(wrong);
  // The work runs on the stream's thread and asks for each copy between its host memory and the GPU. So its
  // copies have the speed, the faults and the timeline of the GPU's engine.
  found->Enqueue([this, end, write, gpu = found->gpu, id = found->id, work = std::move(work)] {
    return work([&](uint64_t offset, std::byte* host, uint64_t piece) {
      return Run({.gpu = gpu,
                  .stream = id,
                  .direction = CopyDirection::kOnDevice,
                  .destination = write ? end.at + offset : host,
                  .source = write ? host : end.at + offset,
                  .bytes = piece});
    });
  });
  return cudaSuccess;
}

cudaError_t Runtime::LaunchKernel(std::string_view kernel, void** parameters, int blocks, int threads,
                                  cudaStream_t stream) {
  const std::shared_ptr<CUstream_st> found = Find(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  CheckGpu(visible_[found->gpu], "cudaLaunchKernel on a stream");
  std::optional<KernelLaunch> launch = LaunchOf(kernel, parameters, blocks, threads);
  if (!launch.has_value()) {
    Wrong(absl::StrCat("kernel ", kernel, " is launched with ", blocks, " blocks of ", threads, " threads"));
  }
  absl::MutexLock lock(&mutex_);
  std::vector<std::byte*> pieces;
  std::vector<std::shared_ptr<GpuMemory>> held;
  for (Access& access : launch->accesses) {
    if (const uint64_t host = access.address ^ kHostSeenByDevice; IsMapped(host, access.bytes)) {
      if (access.write) Wrong(absl::StrCat("kernel ", kernel, " writes to host memory"));
      access.address = host;  // by which copies name it, too
      pieces.push_back(reinterpret_cast<std::byte*>(host));
      continue;
    }
    const End end = EndOf(reinterpret_cast<const void*>(access.address), access.bytes);
    if (end.memory == nullptr || !Reaches(visible_[found->gpu], *end.memory)) {
      Wrong(absl::StrCat("kernel ", kernel, " touches ", absl::Hex(access.address),
                         ", which is not memory that its GPU reaches"));
    }
    pieces.push_back(end.at);
    held.push_back(end.memory);
  }
  const std::string wrong = order_.Enqueue(found->id, launch->accesses);
  if (!wrong.empty()) Wrong(wrong);
  // Kernels use no copy engine: they run on the stream's thread, and the timeline does not show them.
  found->Enqueue([this, gpu = found->gpu, run = std::move(launch->run), pieces, held] {
    if (poisoned_[gpu].load()) return cudaErrorIllegalAddress;
    run(pieces);
    return cudaSuccess;
  });
  return cudaSuccess;
}

cudaError_t Runtime::EnablePeerAccess(int peer) {
  if (peer < 0 || peer >= count() || peer == CurrentGpu()) return cudaErrorInvalidDevice;
  if (!has_peers()) return cudaErrorPeerAccessUnsupported;
  absl::MutexLock lock(&mutex_);
  const bool enabled = peers_.insert({visible_[CurrentGpu()], visible_[peer]}).second;
  return enabled ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t Runtime::CreateEvent(cudaEvent_t* event) {
  absl::MutexLock lock(&mutex_);
  auto made = std::make_unique<CUevent_st>();
  made->gpu = CurrentGpu();
  *event = made.get();
  events_[*event] = std::move(made);
  return cudaSuccess;
}

cudaError_t Runtime::DestroyEvent(cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  return events_.erase(event) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t Runtime::RecordEvent(cudaEvent_t event, cudaStream_t stream) {
  const std::shared_ptr<CUstream_st> on = Find(stream);
  absl::MutexLock lock(&mutex_);
  const auto found = events_.find(event);
  if (on == nullptr || found == events_.end()) return cudaErrorInvalidResourceHandle;
  if (found->second->gpu != on->gpu) return cudaErrorInvalidResourceHandle;
  // Under the lock that enqueues operations, so that the number and the clock cover the same ones.
  found->second->stream = on;
  found->second->number = on->last();
  found->second->clock = order_.Record(on->id);
  return cudaSuccess;
}

cudaError_t Runtime::StreamWaitsForEvent(cudaStream_t stream, cudaEvent_t event) {
  const std::shared_ptr<CUstream_st> waiting = Find(stream);
  absl::MutexLock lock(&mutex_);
  const auto found = events_.find(event);
  if (waiting == nullptr || found == events_.end()) return cudaErrorInvalidResourceHandle;
  order_.Wait(waiting->id, found->second->clock);
  // A copy, because the wait is for what the event covers now: it may be recorded again or destroyed before
  // the wait runs. The error of that stream stays there: AwaitOnly does not take it.
  const CUevent_st recorded = *found->second;
  if (recorded.stream == nullptr || recorded.stream == waiting) return cudaSuccess;
  waiting->Enqueue([recorded] {
    recorded.stream->AwaitOnly(recorded.number);
    return cudaSuccess;
  });
  return cudaSuccess;
}

cudaError_t Runtime::SynchronizeEvent(cudaEvent_t event) {
  CUevent_st recorded;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return cudaErrorInvalidResourceHandle;
    recorded = *found->second;
  }
  if (recorded.stream == nullptr) return cudaSuccess;
  const cudaError_t error = recorded.stream->AwaitEvent(recorded.number);
  absl::MutexLock lock(&mutex_);
  order_.HostWaited(recorded.clock);
  return error;
}

cudaError_t Runtime::QueryEvent(cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return cudaErrorInvalidResourceHandle;
  const CUevent_st& recorded = *found->second;
  if (recorded.stream == nullptr) return cudaSuccess;
  if (!recorded.stream->IsDone(recorded.number)) return cudaErrorNotReady;
  order_.HostWaited(recorded.clock);
  return cudaSuccess;
}

Runtime::Runtime(std::unique_ptr<HostGpus> host, std::vector<int> visible)
    : pid_(getpid()), host_(std::move(host)), visible_(std::move(visible)), poisoned_(visible_.size()) {
  if (const char* const path = std::getenv(kDeviceFaultsVariable); path != nullptr) {
    absl::StatusOr<std::shared_ptr<DeviceFaults>> faults = OpenDeviceFaults(path);
    if (!faults.ok()) Wrong(faults.status().ToString());
    faults_ = *std::move(faults);
  }
  const char* const timeline = std::getenv(kTimelineVariable);
  engines_ = std::make_unique<CopyEngines>(count(), faults_, timeline == nullptr ? "" : timeline);
}

void Runtime::CheckGpu(int gpu, std::string_view call) const {
  if (visible_[CurrentGpu()] == gpu) return;
  Wrong(absl::StrCat(call, " of the host's GPU ", gpu, " while the thread's current device is its GPU ",
                     visible_[CurrentGpu()]));
}

void* Runtime::Add(std::shared_ptr<GpuMemory> memory) {
  const uint64_t address = memory->address();
  memory_[address] = std::move(memory);
  return reinterpret_cast<void*>(address);
}

std::shared_ptr<GpuMemory> Runtime::Remove(void* pointer, bool imported) {
  absl::MutexLock lock(&mutex_);
  const auto found = memory_.find(reinterpret_cast<uint64_t>(pointer));
  if (found == memory_.end() || found->second->imported() != imported) return nullptr;
  CheckGpu(found->second->gpu(), imported ? "cudaIpcCloseMemHandle" : "cudaFree");
  const std::string wrong = order_.Release(found->first, found->second->bytes());
  if (!wrong.empty()) Wrong(wrong);
  std::shared_ptr<GpuMemory> memory = std::move(found->second);
  memory_.erase(found);
  return memory;
}

std::shared_ptr<CUstream_st> Runtime::Find(cudaStream_t stream) {
  // The default stream waits for all others of the device, which this project never wants.
  if (stream == nullptr) Wrong("the default stream is used");
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

Runtime::End Runtime::EndOf(const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  auto found = memory_.upper_bound(address);
  if (found != memory_.begin()) {
    --found;
    const uint64_t offset = address - found->first;
    if (offset < found->second->bytes()) {
      if (bytes > found->second->bytes() - offset) Wrong("a copy leaves its allocation");
      return {.at = found->second->host_view() + offset, .memory = found->second};
    }
  }
  return {.at = static_cast<std::byte*>(const_cast<void*>(pointer)), .memory = nullptr};
}

bool Runtime::IsMapped(uint64_t address, uint64_t bytes) const {
  const auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return false;
  const auto& [base, range] = *std::prev(after);
  const uint64_t offset = address - base;
  return range.mapped && offset <= range.bytes && bytes <= range.bytes - offset;
}

bool Runtime::Reaches(int gpu, const GpuMemory& memory) const {
  return memory.gpu() == gpu || peers_.contains({gpu, memory.gpu()});
}

cudaError_t Runtime::Run(const Copy& copy) {
  if (poisoned_[copy.gpu].load()) return cudaErrorIllegalAddress;
  switch (engines_->Run(copy)) {
    case CopyEngines::Outcome::kDone:
      return cudaSuccess;
    case CopyEngines::Outcome::kFailed:
      return cudaErrorUnknown;
    case CopyEngines::Outcome::kPoisoned:
      poisoned_[copy.gpu] = true;
      DropImports(visible_[copy.gpu]);
      return cudaErrorIllegalAddress;
  }
  return cudaErrorUnknown;
}

// What a broken context had open cannot be reached by it any more, nor closed: its exporter may free it.
void Runtime::DropImports(int gpu) {
  absl::MutexLock lock(&mutex_);
  for (auto open = imported_.begin(); open != imported_.end();) {
    const auto memory = memory_.find(open->second.address);
    if (memory == memory_.end() || memory->second->gpu() != gpu) {
      ++open;
      continue;
    }
    memory_.erase(memory);
    open = imported_.erase(open);
  }
}

}  // namespace tensorcast::stand_ins
