// Reading and writing the safetensors format (https://github.com/huggingface/safetensors#format): single
// files, and directories with a model.safetensors.index.json. Only headers are parsed here; tensor bytes are
// read by an object source (core/source). Functions only, thread-safe; whatever a file holds, it is an error
// and not a crash.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// A parsed header.
struct SafetensorsHeader {
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<uint64_t> shape;
    ByteRange data;  // relative to the data section
  };
  std::vector<Entry> tensors;                   // in the order of their data
  std::map<std::string, std::string> metadata;  // __metadata__
  bool has_metadata = false;                    // though it may be empty
  uint64_t data_offset = 0;                     // where the data section begins in the file
  uint64_t data_bytes = 0;
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

// A file with an empty __metadata__ is another than one without. In a model and an artifact, where metadata
// that is empty is none, it is this key with an empty value, alone.
inline constexpr std::string_view kEmptyMetadataKey = "__metadata__";

// As TensorBytes, and by the format's own rule: the product of the dimensions, taken in order, must not
// overflow before a zero is reached.
absl::StatusOr<uint64_t> SafetensorsTensorBytes(DType dtype, const std::vector<uint64_t>& shape);

// Checks all that the format asks for: a valid JSON object without repeated keys, known dtypes, sizes that
// follow from shapes, data that covers the section without holes or overlaps. INVALID_ARGUMENT says which
// tensor and what is wrong. `header` is the JSON (without the 8-byte length); `data_bytes` is what the file
// holds behind it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes);

// A model and the image it becomes: tensors by shard name, then by offset.
struct SafetensorsModel {
  ObjectReaders objects;              // with headers that were read
  std::vector<std::string> shards;    // what each of them is called in `metadata`
  std::vector<ObjectExtent> extents;  // where the tensors' bytes are, in image order; neighbours are joined
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<ObjectFolder> folder =
      {};  // that it was found in; null: its file was named, or objects were
};

// At `uri` is a .safetensors file, or a folder that holds model.safetensors.index.json, a single
// model.safetensors, or an adapter's adapter_model.safetensors; these names are tried where the folder may
// not be listed. In a folder nothing outside of it is read. Where shards disagree about a metadata key, the
// first keeps it and the other's value is under "<shard>/<key>". INVALID_ARGUMENT for anything malformed,
// naming file and tensor; for objects that cannot be opened what `store` says, and when the context ends
// meanwhile; NOT_FOUND for a folder without a model.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const RequestContext& context, const ObjectStore& store,
                                                 const std::string& uri);
// As above, of files that this process may read, for tools: NOT_FOUND for a missing file or shard.
absl::StatusOr<SafetensorsModel> OpenSafetensors(const std::string& path);
// The model that these objects make, in this order: for objects of a model that was opened before. `shards`
// are the names that the metadata has for them; without, these are their URIs.
absl::StatusOr<SafetensorsModel> ReadSafetensors(const RequestContext& context, const ObjectReaders& objects,
                                                 std::vector<std::string> shards = {});
// Reads the headers of a model a second time, and replaces what was read. `manifest` is what was made of them
// first; ABORTED when they describe other tensors or hold other metadata now.
absl::Status ReadSafetensorsAgain(const RequestContext& context, const Manifest& manifest,
                                  SafetensorsModel& model);

// The tensors in the order in which a safetensors file should hold them: the image's, unless without the
// image's padding a tensor would begin at an offset that is not a multiple of its element's size, which some
// readers refuse; then larger elements come first. Their offsets stay those of the image.
std::vector<Tensor> SafetensorsOrder(const ImageLayout& layout);

// The first bytes of a safetensors file with these tensors in this order (length and padded JSON); tensor
// data follows back to back. INVALID_ARGUMENT for a name or size that a safetensors file can't have.
absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<Tensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata);

// Writes a whole image as one file, in SafetensorsOrder, which appears synced and whole or not at all.
// RESOURCE_EXHAUSTED when the disk is full; CANCELLED or DEADLINE_EXCEEDED, also in the middle, when the
// context says so.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata, ConstHostSpan image,
                              const RequestContext& context = {});
// As above, for tensors that lie anywhere: `bytes_of` gives the bytes of a tensor of the layout.
absl::Status WriteSafetensors(const std::string& path, const ImageLayout& layout,
                              const std::map<std::string, std::string>& metadata,
                              absl::FunctionRef<ConstHostSpan(const Tensor&)> bytes_of,
                              const RequestContext& context = {});

}  // namespace tensorcast
