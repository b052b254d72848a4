#include "client/mapped_images.h"

#include <utility>

namespace tensorcast::client {

MappedImages& MappedImages::OfProcess() {
  static auto* const images = new MappedImages;  // replicas may outlive the statics
  return *images;
}

void MappedImages::Add(std::span<const std::byte> image, Place place) {
  absl::MutexLock lock(&mutex_);
  images_[image.data()] = {.bytes = image.size(), .place = std::move(place)};
}

void MappedImages::Remove(std::span<const std::byte> image) {
  absl::MutexLock lock(&mutex_);
  images_.erase(image.data());
}

std::optional<MappedImages::Place> MappedImages::Find(std::span<const std::byte> bytes) const {
  absl::MutexLock lock(&mutex_);
  // The last image that begins at or before the bytes, since images do not overlap.
  auto image = images_.upper_bound(bytes.data());
  if (image == images_.begin()) return std::nullopt;
  --image;
  // Bytes that reach past the image are not those of the replica. Compared without a sum, which could
  // overflow.
  const auto offset = static_cast<size_t>(bytes.data() - image->first);
  if (offset > image->second.bytes || bytes.size() > image->second.bytes - offset) return std::nullopt;
  Place place = image->second.place;
  place.image_offset += offset;
  return place;
}

}  // namespace tensorcast::client
