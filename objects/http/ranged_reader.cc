#include "objects/http/ranged_reader.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tensorcast::objects {
namespace {

class RangedReader final : public ObjectReader {
 public:
  RangedReader(ObjectIdentity identity, std::string etag, ObjectTraits traits, ReadRange read,
               std::function<absl::Status(const RequestContext&)> check)
      : identity_(std::move(identity)),
        etag_(std::move(etag)),
        traits_(traits),
        read_(std::move(read)),
        check_(std::move(check)) {}

  const ObjectIdentity& identity() const override { return identity_; }
  const ObjectTraits& traits() const override { return traits_; }

  absl::Status Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                    uint64_t needed) override {
    TC_RETURN_IF_ERROR(context.Check(identity_.uri));
    TC_RETURN_IF_ERROR(CheckObjectRange(identity_, offset, needed));
    if (needed == 0) return absl::OkStatus();
    return read_(context, {.offset = offset,
                           // What lies behind `needed` may be written but is not worth a transfer.
                           .destination = destination.first(needed),
                           .etag = etag_,
                           .object_bytes = identity_.bytes});
  }
  absl::Status CheckUnchanged(const RequestContext& context) override {
    return check_ ? check_(context) : absl::OkStatus();
  }

 private:
  const ObjectIdentity identity_;
  const std::string etag_;
  const ObjectTraits traits_;
  const ReadRange read_;
  const std::function<absl::Status(const RequestContext&)> check_;
};

}  // namespace

ObjectTraits NetworkTraits(std::string_view lane) {
  // While some requests wait for their answer others bring bytes: up to 64 MiB are asked for at a time.
  return {.lane = lane, .max_concurrency = 8, .read_bytes = 8u << 20};
}

std::shared_ptr<ObjectReader> MakeRangedReader(ObjectIdentity identity, std::string etag, ObjectTraits traits,
                                               ReadRange read,
                                               std::function<absl::Status(const RequestContext&)> check) {
  return std::make_shared<RangedReader>(std::move(identity), std::move(etag), traits, std::move(read),
                                        std::move(check));
}

absl::Status CheckBelow(std::string_view folder, std::string_view name) {
  for (const std::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty() || part == "." || part == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat("open ", name, " in ", folder,
                       ": the name has an empty part, \".\" or \"..\"; name a file below the folder"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameObject(const ObjectIdentity& before, const ObjectIdentity& now) {
  if (before == now) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("open ", before.uri, " again: ", DescribeChange(before, now), "; import the model again"));
}

}  // namespace tensorcast::objects
