// Files, and the test double in memory, keep the contract of objects.
#include "core/testing/object_contract.h"

#include <filesystem>

#include "core/disk/import_roots.h"
#include "core/disk/test_util.h"
#include "core/testing/memory_objects.h"

namespace tensorcast::testing::object_contract_test {
namespace {

class Files final : public ObjectPlace {
 public:
  const ObjectStore& store() const override { return roots_; }
  std::string folder() const override { return folder_.path(); }
  void Put(const std::string& name, const std::string& bytes) override {
    const std::string path = folder_.File(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const ObjectIdentity before = std::filesystem::exists(path) ? IdentityOf(path) : ObjectIdentity();
    // Again while the file system's grain of time hides it.
    do {
      WriteFile(path, bytes);
    } while (IdentityOf(path) == before);
  }
  void Remove(const std::string& name) override { std::filesystem::remove(folder_.File(name)); }

 private:
  const TestFolder folder_;
  const ImportRoots roots_ = *ImportRoots::Beneath({folder_.path()});
};

class Memory final : public ObjectPlace {
 public:
  const ObjectStore& store() const override { return objects_; }
  std::string folder() const override { return "mem://folder"; }
  void Put(const std::string& name, const std::string& bytes) override {
    objects_.Put(folder() + "/" + name, bytes);
  }
  void Remove(const std::string& name) override { objects_.Remove(folder() + "/" + name); }

 private:
  MemoryObjects objects_;
};

template <class Place>
std::unique_ptr<ObjectPlace> Make() {
  return std::make_unique<Place>();
}

INSTANTIATE_TEST_SUITE_P(Files, ObjectContract, ::testing::Values(Make<Files>));
INSTANTIATE_TEST_SUITE_P(Memory, ObjectContract, ::testing::Values(Make<Memory>));

}  // namespace
}  // namespace tensorcast::testing::object_contract_test
