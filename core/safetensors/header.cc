#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/safetensors/safetensors.h"
#include "core/safetensors/strict_json.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// {"__metadata__": {key: text, ...}, tensor: {"dtype": text, "shape": [n, ...], "data_offsets": [begin,
// end]}, ...}
// A state machine over the events of the JSON parser: each state has the events that may come next, and all
// others are errors. So nothing of the header is built that the format does not have. Names and metadata keys
// are remembered, since the parser itself lets repeated keys pass.
class HeaderReader : public StrictJsonReader {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  // Three kinds of objects are expected: the header, its metadata, and a tensor.
  bool start_object(size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTopValue) return Unexpected("an object");
    if (name_ == kMetadataKey) {
      state_ = State::kMetadata;
      header_.has_metadata = true;
      return true;
    }
    state_ = State::kTensor;
    fields_seen_ = 0;
    header_.tensors.push_back({.name = name_});
    return true;
  }

  bool key(string_t& key) override {
    switch (state_) {
      case State::kTop:
        name_ = key;
        state_ = State::kTopValue;
        // Readers differ in which of two equal keys counts, so a file with both has no single meaning.
        return names_.insert(name_).second || Fail("this key appears twice");
      case State::kTensor:
        return Field(key);
      case State::kMetadata:
        metadata_key_ = key;
        state_ = State::kMetadataValue;
        return !header_.metadata.contains(key) ||
               Fail(absl::StrCat("key ", QuoteName(key), " appears twice"));
      default:
        return Unexpected("a key");
    }
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadataValue) {
      header_.metadata.emplace(metadata_key_, std::move(text));
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kDType) return Unexpected("a string");
    const DTypeInfo* dtype = FindDType(text);
    if (dtype == nullptr) {
      return Fail(absl::StrCat("the dtype ", QuoteName(text),
                               " is unknown; save the tensor with a dtype that this release knows"));
    }
    header_.tensors.back().dtype = dtype->dtype;
    state_ = State::kTensor;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kShape || state_ == State::kOffsets) {
      state_ = state_ == State::kShape ? State::kShapeItems : State::kOffsetItems;
      return true;
    }
    return Unexpected("an array");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShapeItems) {
      header_.tensors.back().shape.push_back(value);
      return true;
    }
    if (state_ == State::kOffsetItems) {
      if (offsets_ == 2) return Fail("data_offsets has more than 2 numbers");
      offset_[offsets_++] = value;
      return true;
    }
    return Unexpected("a number");
  }

  bool end_array() override {
    if (state_ == State::kOffsetItems) {
      if (offsets_ != 2 || offset_[0] > offset_[1]) {
        return Fail("data_offsets must be [begin, end] with begin <= end");
      }
      header_.tensors.back().data = {offset_[0], offset_[1] - offset_[0]};
    }
    state_ = State::kTensor;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor && fields_seen_ != kAllFields) {
      return Fail("dtype, shape or data_offsets is missing");
    }
    // A tensor and the metadata end in the header, and the header ends the document.
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

 protected:
  std::string Where() const override {
    switch (state_) {
      case State::kStart:
      case State::kTop:
      case State::kEnd:
        return "the header";
      case State::kMetadata:
      case State::kMetadataValue:
        return std::string(kMetadataKey);
      default:
        return name_ == kMetadataKey ? name_ : absl::StrCat("tensor ", QuoteName(name_));
    }
  }

 private:
  // kTopValue, kMetadataValue, kDType, kShape, kOffsets: behind a key, before its value.
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kEnd
  };
  static constexpr int kDTypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7;

  bool Field(const std::string& key) {
    int field = 0;
    if (key == "dtype") {
      field = kDTypeField;
      state_ = State::kDType;
    } else if (key == "shape") {
      field = kShapeField;
      state_ = State::kShape;
    } else if (key == "data_offsets") {
      field = kOffsetsField;
      state_ = State::kOffsets;
      offsets_ = 0;
    } else {
      return Fail(absl::StrCat("the field ", QuoteName(key), " is unknown"));
    }
    if ((fields_seen_ & field) != 0) return Fail(absl::StrCat(key, " appears twice"));
    fields_seen_ |= field;
    return true;
  }

  SafetensorsHeader& header_;
  State state_ = State::kStart;
  std::string name_;
  std::string metadata_key_;
  absl::flat_hash_set<std::string> names_;
  int fields_seen_ = 0;
  int offsets_ = 0;
  uint64_t offset_[2] = {};
};

absl::Status CheckSize(const SafetensorsHeader::Entry& entry) {
  const absl::StatusOr<uint64_t> bytes = SafetensorsTensorBytes(entry.dtype, entry.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("tensor ", QuoteName(entry.name)));
  if (*bytes != entry.data.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteName(entry.name), ": data_offsets span ",
                                                   entry.data.bytes, " bytes, but dtype and shape need ",
                                                   *bytes, " bytes"));
  }
  return absl::OkStatus();
}

// REQUIRES: header.tensors is in the order of their data.
absl::Status CheckCoverage(const SafetensorsHeader& header) {
  uint64_t end = 0;
  for (const auto& entry : header.tensors) {
    // The format allows neither holes nor overlaps, so each byte of the file has one meaning.
    if (entry.data.offset != end) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", QuoteName(entry.name), ": data_offsets begin at ", entry.data.offset,
                       " instead of ", end,
                       entry.data.offset > end ? ": there is a hole before the tensor"
                                               : ": the tensor overlaps the previous one"));
    }
    end += entry.data.bytes;
  }
  if (end != header.data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensors need ", end, " bytes of data, but the file has ", header.data_bytes, " bytes of data: ",
        end > header.data_bytes ? "the file is truncated" : "other bytes follow the tensors"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsTensorBytes(DType dtype, const std::vector<uint64_t>& shape) {
  TC_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(dtype, shape));
  // Multiplied in the order of the shape, as other readers do: [2^40, 2^40, 0] has no bytes and is
  // refused all the same.
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements)) {
      return absl::InvalidArgumentError(
          "size a tensor: the product of the dimensions before the first 0 does not fit in 64 bits; correct "
          "the shape");
    }
  }
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes) {
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", header.size(),
                                                   " bytes is larger than the ", kMaxSafetensorsHeaderBytes,
                                                   " bytes that the format allows"));
  }
  if (header.empty() || header[0] != '{') {
    return absl::InvalidArgumentError(
        "the file is not a safetensors file, since the header does not begin with '{'");
  }
  SafetensorsHeader parsed;
  HeaderReader reader(parsed);
  TC_RETURN_IF_ERROR(ParseStrictJson(header, reader));
  for (const auto& entry : parsed.tensors) TC_RETURN_IF_ERROR(CheckSize(entry));
  // Empty tensors share their offset with the tensor that follows them. The name decides between two of
  // those, so that one file always has one order.
  std::sort(parsed.tensors.begin(), parsed.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.data.offset, a.data.bytes, a.name) < std::tie(b.data.offset, b.data.bytes, b.name);
  });
  parsed.data_offset = sizeof(uint64_t) + header.size();
  parsed.data_bytes = data_bytes;
  TC_RETURN_IF_ERROR(CheckCoverage(parsed));
  return parsed;
}

}  // namespace tensorcast
