#include "core/safetensors/index.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/manifest.h"
#include "core/safetensors/strict_json.h"

namespace tensorcast {
namespace {

// No tool writes an index that is nested so deeply.
constexpr int kMaxDepth = 64;

// {"weight_map": {tensor: shard, ...}, anything else}
// The values of all other keys are skipped: any JSON is allowed there, up to kMaxDepth levels, since the
// parser itself sets no limit.
class IndexReader : public StrictJsonReader {
 public:
  explicit IndexReader(SafetensorsIndex& index) : index_(index) {}

  bool has_weight_map() const { return has_weight_map_; }

  bool start_object(size_t) override {
    // At this depth an object is the value of weight_map, unless another key is skipped.
    if (depth_ == 1 && !skipping_) in_weight_map_ = true;
    return Deeper("an object");
  }

  bool start_array(size_t) override { return skipping_ ? Deeper("an array") : Wrong("an array"); }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      // All but weight_map is skipped, as long as it is valid JSON.
      skipping_ = key != "weight_map";
      if (!skipping_ && has_weight_map_) return Fail("weight_map appears twice");
      has_weight_map_ |= !skipping_;
    } else if (!skipping_) {
      tensor_ = key;
    }
    return true;
  }

  bool string(string_t& shard) override {
    if (skipping_) return true;
    if (!in_weight_map_) return Wrong("a string");
    // The name becomes a path: it must not lead out of the model's folder.
    if (!IsPathBelow(shard)) {
      return Fail(absl::StrCat("tensor ", QuoteName(tensor_), " is in ", QuoteName(shard),
                               ", which is not a plain path inside the model's folder"));
    }
    return index_.weight_map.emplace(tensor_, std::move(shard)).second ||
           Fail(absl::StrCat("tensor ", QuoteName(tensor_), " appears twice"));
  }

  bool end_object() override {
    --depth_;
    in_weight_map_ = false;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool null() override { return skipping_ || Wrong("null"); }
  bool boolean(bool) override { return skipping_ || Wrong("a boolean"); }
  bool number_integer(number_integer_t) override { return skipping_ || Wrong("a number"); }
  bool number_unsigned(number_unsigned_t) override { return skipping_ || Wrong("a number"); }
  bool number_float(number_float_t, const string_t&) override { return skipping_ || Wrong("a number"); }

 protected:
  std::string Where() const override { return in_weight_map_ ? "weight_map" : "the index"; }

 private:
  // Refuses a value of another type than its place has.
  bool Wrong(std::string_view what) {
    if (in_weight_map_) {
      return Fail(
          absl::StrCat("the value of tensor ", QuoteName(tensor_), " is ", what, ", not the name of a file"));
    }
    return depth_ == 1 ? Fail(absl::StrCat("weight_map is ", what, ", not an object")) : Unexpected(what);
  }

  bool Deeper(std::string_view what) {
    if (in_weight_map_ && depth_ > 1) return Wrong(what);
    return ++depth_ <= kMaxDepth ||
           Fail(absl::StrCat("the values are nested deeper than ", kMaxDepth, " levels"));
  }

  SafetensorsIndex& index_;
  int depth_ = 0;  // 1: among the document's own keys
  bool skipping_ = false;
  bool in_weight_map_ = false;
  bool has_weight_map_ = false;
  std::string tensor_;
};

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json) {
  SafetensorsIndex index;
  IndexReader reader(index);
  TC_RETURN_IF_ERROR(ParseStrictJson(json, reader));
  if (!reader.has_weight_map()) return absl::InvalidArgumentError("the index has no weight_map");
  if (index.weight_map.empty()) {
    return absl::InvalidArgumentError("the weight_map of the index names no shard");
  }
  return index;
}

}  // namespace tensorcast
