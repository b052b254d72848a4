// Which tensors are handed over: real memory, mapped in every way that changes the answer.
#include "client/handed_tensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "client/mapped_images.h"
#include "core/artifact/layout.h"

namespace tensorcast::client::handed_tensors_test {
namespace {

constexpr size_t kBytes = size_t{256} << 10;
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

UniqueFd MakeMemory(int seals) {
  UniqueFd memory(memfd_create("a test's tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string bytes(kBytes, 'x');
  EXPECT_EQ(write(memory.get(), bytes.data(), kBytes), static_cast<ssize_t>(kBytes));
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

// A mapping of the whole memory.
class Mapped {
 public:
  Mapped(const UniqueFd& memory, int protection, int flags)
      : base_(mmap(nullptr, kBytes, protection, flags, memory.get(), 0)) {
    EXPECT_NE(base_, MAP_FAILED);
  }
  ~Mapped() { munmap(base_, kBytes); }

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(base_), kBytes}; }

 private:
  void* const base_;
};

std::vector<HandedMemory> Handed(std::initializer_list<std::span<const std::byte>> tensors) {
  std::vector<PutTensor> put;
  ImageLayout layout;
  for (const std::span<const std::byte> bytes : tensors) {
    const std::string name = std::to_string(put.size());
    put.push_back({.name = name, .dtype = DType::kU8, .shape = {bytes.size()}, .bytes = bytes});
    layout.tensors.push_back(
        {.name = name, .dtype = DType::kU8, .shape = {bytes.size()}, .nbytes = bytes.size()});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  return FindHandedTensors(put, layout);
}

TEST(HandedTensors, SealedMemory_IsHandedOverOnceWithAllItsTensors) {
  const UniqueFd memory = MakeMemory(kSeals);
  const Mapped mapped(memory, PROT_READ, MAP_PRIVATE);
  const std::vector<std::byte> ordinary(kBytes);
  const auto handed =
      Handed({ordinary, mapped.bytes().subspan(4096, 100'000), mapped.bytes().subspan(100, 70'000)});
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed[0].bytes, kBytes);
  const std::vector<HandedPart> parts = {{kBytes, 100'000, 4096}, {kBytes + 100'096, 70'000, 100}};
  EXPECT_EQ(handed[0].parts, parts);
  struct stat ours, theirs;
  ASSERT_EQ(fstat(memory.get(), &ours), 0);
  ASSERT_EQ(fstat(handed[0].memfd.get(), &theirs), 0);
  EXPECT_EQ(ours.st_ino, theirs.st_ino);
}

TEST(HandedTensors, MemoryWithoutAllSeals_IsStreamed) {
  for (const int missing : {F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW}) {
    const UniqueFd memory = MakeMemory(kSeals & ~missing);
    const Mapped mapped(memory, PROT_READ, MAP_PRIVATE);
    EXPECT_TRUE(Handed({mapped.bytes()}).empty()) << missing;
  }
}

TEST(HandedTensors, PrivateMappingThatWasWrittenTo_IsStreamed) {
  const UniqueFd memory = MakeMemory(kSeals);
  const Mapped mapped(memory, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  EXPECT_EQ(mapped.bytes()[0], std::byte{'x'});
  EXPECT_EQ(Handed({mapped.bytes()}).size(), 1u);
  mapped.bytes()[kBytes - 1] = std::byte{'y'};
  EXPECT_TRUE(Handed({mapped.bytes()}).empty());
  // The pages before are the memory's still.
  EXPECT_EQ(Handed({mapped.bytes().first(kBytes / 2)}).size(), 1u);
}

TEST(HandedTensors, MemoryWithoutADescriptor_IsStreamed) {
  UniqueFd memory = MakeMemory(kSeals);
  const Mapped mapped(memory, PROT_READ, MAP_PRIVATE);
  memory = UniqueFd();
  EXPECT_TRUE(Handed({mapped.bytes()}).empty());
}

TEST(HandedTensors, SmallTensor_IsStreamed) {
  const UniqueFd memory = MakeMemory(kSeals);
  const Mapped mapped(memory, PROT_READ, MAP_PRIVATE);
  EXPECT_TRUE(Handed({mapped.bytes().first(1000)}).empty());
}

TEST(HandedTensors, TensorThatReachesPastItsMapping_IsStreamed) {
  const UniqueFd memory = MakeMemory(kSeals);
  const Mapped mapped(memory, PROT_READ, MAP_PRIVATE);
  EXPECT_TRUE(Handed({{mapped.bytes().data() + 4096, kBytes}}).empty());
}

TEST(HandedTensors, TensorOfMappedReplica_IsNamedByReplicaAndOffset) {
  const std::vector<std::byte> image(kBytes);
  MappedImages::OfProcess().Add(image, {.pool_id = "pool", .replica_id = "replica"});
  const auto handed = Handed({std::span(image).subspan(512, 100'000)});
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_FALSE(handed[0].memfd);
  EXPECT_EQ(handed[0].pool_id, "pool");
  EXPECT_EQ(handed[0].replica_id, "replica");
  EXPECT_EQ(handed[0].parts, (std::vector<HandedPart>{{0, 100'000, 512}}));
  MappedImages::OfProcess().Remove(image);
  EXPECT_TRUE(Handed({std::span(image).subspan(512, 100'000)}).empty());
}

}  // namespace
}  // namespace tensorcast::client::handed_tensors_test
