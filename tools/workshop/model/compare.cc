#include "tools/workshop/model/compare.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/handles/handles.h"
#include "core/memory/host_pool.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {
namespace {

class MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const ObjectReader& file) {
    const uint64_t bytes = file.identity().bytes;
    void* base = mmap(nullptr, std::max<uint64_t>(bytes, 1), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (base == MAP_FAILED) return ErrnoStatus(errno, "map", file.identity().uri);
    return std::unique_ptr<MappedFile>(new MappedFile(static_cast<const std::byte*>(base), bytes));
  }
  ~MappedFile() { munmap(const_cast<std::byte*>(base_), std::max<uint64_t>(bytes_, 1)); }
  const std::byte* base() const { return base_; }

 private:
  MappedFile(const std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  const std::byte* base_;
  uint64_t bytes_;
};

// The file bytes of a tensor; its extent may also cover neighbours.
const std::byte* FindInFiles(const Tensor& tensor, const SafetensorsModel& model,
                             const std::vector<std::unique_ptr<MappedFile>>& files) {
  for (const ObjectExtent& extent : model.extents) {
    if (tensor.offset < extent.image_offset ||
        tensor.offset - extent.image_offset + tensor.nbytes > extent.bytes) {
      continue;
    }
    return files[extent.object]->base() + extent.object_offset + (tensor.offset - extent.image_offset);
  }
  return nullptr;
}

// Gives host memory with a tensor's bytes, wherever the replica is. Each call ends what the last one gave.
class TensorReader {
 public:
  explicit TensorReader(DeviceRuntime* devices) : devices_(devices) {}

  absl::StatusOr<ConstHostSpan> Read(const client::TensorView& view) {
    if (!view.device || view.nbytes == 0) return ConstHostSpan(view.host);
    if (stream_ == nullptr) {
      if (devices_ == nullptr) return absl::FailedPreconditionError("reading a GPU replica needs devices");
      TC_ASSIGN_OR_RETURN(stream_, devices_->CreateStream(view.device.device));
    }
    copy_.resize(view.nbytes);
    TC_RETURN_IF_ERROR(stream_->CopyToHost(copy_.data(), view.device, copy_.size()));
    TC_RETURN_IF_ERROR(stream_->Synchronize());
    return ConstHostSpan(copy_);
  }

 private:
  DeviceRuntime* const devices_;
  std::vector<std::byte> copy_;  // outlives the stream, which may still write to it
  std::unique_ptr<Stream> stream_;
};

absl::Status Differs(const Tensor& tensor, std::string_view how) {
  return absl::DataLossError(absl::StrCat("tensor \"", tensor.name, "\" ", how));
}

absl::Status CompareBytes(const Tensor& tensor, const std::byte* expected, ConstHostSpan actual) {
  if (actual.size() != tensor.nbytes) {
    return Differs(tensor, absl::StrCat("has ", actual.size(), " bytes, in the file ", tensor.nbytes));
  }
  if (actual.empty() || std::memcmp(actual.data(), expected, actual.size()) == 0) return absl::OkStatus();
  const auto [at, unused] = std::mismatch(actual.begin(), actual.end(), expected);
  return Differs(tensor, absl::StrCat("differs from the file at its byte ", at - actual.begin()));
}

// With `tensors`, of the model.
absl::StatusOr<uint64_t> Compare(std::span<const client::TensorView> replica, const SafetensorsModel& model,
                                 const std::vector<Tensor>& tensors, DeviceRuntime* devices,
                                 const RequestContext& context) {
  std::vector<std::unique_ptr<MappedFile>> files;
  for (const auto& file : model.objects) {
    TC_ASSIGN_OR_RETURN(files.emplace_back(), MappedFile::Open(*file));
  }
  if (replica.size() != tensors.size()) {
    return absl::DataLossError(absl::StrCat("the replica has ", replica.size(), " tensors, not ",
                                            tensors.size(), " of ", model.objects.front()->identity().uri));
  }
  // As many on both sides and each of the model's found: then there are no others.
  absl::flat_hash_map<std::string_view, const client::TensorView*> by_name;
  for (const client::TensorView& view : replica) by_name.emplace(view.name, &view);
  TensorReader reader(devices);
  uint64_t compared = 0;
  for (const Tensor& tensor : tensors) {
    TC_RETURN_IF_ERROR(context.Check("comparing a replica with its model"));
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) return Differs(tensor, "is not in the replica");
    const client::TensorView& view = *found->second;
    if (view.dtype != tensor.dtype || !std::ranges::equal(view.shape, tensor.shape)) {
      return Differs(tensor, "has another dtype or shape than in the file");
    }
    TC_ASSIGN_OR_RETURN(const ConstHostSpan actual, reader.Read(view));
    const std::byte* expected = FindInFiles(tensor, model, files);
    if (expected == nullptr && tensor.nbytes > 0) {
      return absl::InternalError(absl::StrCat("no file extent covers tensor ", tensor.name));
    }
    TC_RETURN_IF_ERROR(CompareBytes(tensor, expected, actual));
    compared += tensor.nbytes;
  }
  return compared;
}

}  // namespace

absl::StatusOr<uint64_t> CompareReplica(std::span<const client::TensorView> replica,
                                        const std::string& model_path, DeviceRuntime* devices,
                                        const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(model_path));
  return Compare(replica, model, model.layout.tensors, devices, context);
}

absl::StatusOr<uint64_t> ComparePart(std::span<const client::TensorView> part,
                                     std::span<const std::string> names, const std::string& model_path,
                                     const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(model_path));
  std::vector<Tensor> tensors;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(model.layout.tensors, name, &Tensor::name);
    if (found == model.layout.tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no tensor \"", name, "\" in ", model_path));
    }
    tensors.push_back(*found);
  }
  return Compare(part, model, tensors, /*devices=*/nullptr, context);
}

}  // namespace tensorcast
