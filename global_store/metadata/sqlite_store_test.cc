// What only the SQLite backend promises: durability, exclusion, and clear errors for every kind of bad file.
#include "global_store/metadata/metadata_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "global_store/metadata/sqlite_connection.h"

namespace tensorcast::global_store::sqlite_store_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

class SqliteStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("sqlite-store-", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ / "store.db"; }
  void RunSql(const char* sql) const {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
  std::unique_ptr<MetadataStore> Open() const {
    auto store = OpenSqliteStore({.path = path()});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  absl::Status OpenError() const { return OpenSqliteStore({.path = path()}).status(); }

  std::filesystem::path folder_;
};

WriteBatch NumberedBatch(int number) {
  static std::map<int, std::string>& names = *new std::map<int, std::string>;  // a batch borrows its manifest
  const std::string& name = names.try_emplace(number, absl::StrCat("key-", number)).first->second;
  return {.facts = {.artifacts = {{.artifact_id = name, .created = kNow, .updated = kNow}},
                    .keys = {{.name = name, .artifact_id = name, .revision = 1, .updated = kNow}}},
          .manifests = {ManifestBlob{.artifact_id = name, .bytes = name}},
          .request = RequestRecord{name, name, kNow}};
}

// In a process of its own: commits one batch after the other and writes each number to `pipe` once it is
// committed.
[[noreturn]] void CommitUntilKilled(const std::string& path, int pipe) {
  auto store = OpenSqliteStore({.path = path});
  for (int number = 0; store.ok() && (*store)->Commit(NumberedBatch(number)).ok(); ++number) {
    if (write(pipe, &number, sizeof(number)) != sizeof(number)) break;
  }
  _exit(1);
}

TEST_F(SqliteStoreTest, AcknowledgedCommits_SurviveKilledProcess) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) CommitUntilKilled(path(), pipe_ends[1]);
  close(pipe_ends[1]);
  int last = -1;
  while (last < 20 && read(pipe_ends[0], &last, sizeof(last)) == sizeof(last)) {
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
  while (read(pipe_ends[0], &last, sizeof(last)) == sizeof(last)) {
  }
  close(pipe_ends[0]);

  auto store = Open();
  ASSERT_NE(store, nullptr);
  auto facts = store->Load();
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_GE(last, 20);
  // The one after `last` may have been committed and not yet told.
  EXPECT_GE(facts->keys.size(), static_cast<size_t>(last) + 1);
  EXPECT_LE(facts->keys.size(), static_cast<size_t>(last) + 2);
  EXPECT_EQ(facts->artifacts.size(), facts->keys.size());
  for (const KeyRecord& key : facts->keys) {
    EXPECT_EQ(store->ReadManifest(key.name).value_or("none"), key.name);
    EXPECT_EQ(store->FindResponse(key.name).value(), key.name);
  }
}

TEST_F(SqliteStoreTest, Reopen_KeepsFacts) {
  ASSERT_TRUE(Open()->Commit(NumberedBatch(7)).ok());
  auto facts = Open()->Load();
  ASSERT_TRUE(facts.ok());
  EXPECT_THAT(facts->keys, SizeIs(1));
  EXPECT_THAT(facts->artifacts, SizeIs(1));
}

TEST_F(SqliteStoreTest, SecondStoreOnSameFile_IsRefused) {
  auto store = Open();
  const absl::Status second = OpenError();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.message(), HasSubstr("another global store"));
  store.reset();
  EXPECT_TRUE(OpenError().ok());
}

TEST_F(SqliteStoreTest, SecondStoreByOtherPath_IsRefused) {
  auto store = Open();
  const std::filesystem::path elsewhere = folder_ / "elsewhere";
  std::filesystem::create_directory(elsewhere);
  std::filesystem::create_symlink(path(), elsewhere / "symlink.db");
  std::filesystem::create_hard_link(path(), elsewhere / "hardlink.db");
  std::filesystem::create_directory_symlink(folder_, elsewhere / "folder");
  for (const char* name : {"symlink.db", "hardlink.db", "folder/store.db"}) {
    const absl::Status second = OpenSqliteStore({.path = elsewhere / name}).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << name;
  }
}

TEST_F(SqliteStoreTest, SecondStore_IsRefusedWhenLockFilesAreRemoved) {
  auto store = Open();
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path() != path()) std::filesystem::remove(entry.path());
  }
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kAlreadyExists);
}

// What happens to the files of a store that is open, and which of them the error names.
struct Accident {
  std::string name;
  std::string suffix;
  bool replaced = false;
};

class SqliteStoreAccident : public SqliteStoreTest, public ::testing::WithParamInterface<Accident> {};

TEST_P(SqliteStoreAccident, RemovedOrReplacedFile_RefusesCommitsUntilRestored) {
  auto store = Open();
  ASSERT_TRUE(store->Commit(NumberedBatch(1)).ok());
  ASSERT_TRUE(store->Check().ok());
  const std::string file = path() + GetParam().suffix;
  const std::string aside = folder_ / "aside";
  std::filesystem::rename(file, aside);
  if (GetParam().replaced) std::filesystem::copy_file(aside, file);

  for (const absl::Status& refused :
       {store->Commit(NumberedBatch(2)), store->Check(), store->Purge({kNow, kNow, kNow})}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(file));
    EXPECT_THAT(refused.message(), HasSubstr(GetParam().replaced ? "replaced" : "removed"));
  }
  EXPECT_THAT(store->Load()->keys, SizeIs(1)) << "what it has can still be read";

  std::filesystem::rename(aside, file);
  EXPECT_TRUE(store->Commit(NumberedBatch(3)).ok());
  store.reset();
  EXPECT_THAT(Open()->Load()->keys, SizeIs(2));
}

INSTANTIATE_TEST_SUITE_P(All, SqliteStoreAccident,
                         ::testing::Values(Accident{"DatabaseRemoved", ""},
                                           Accident{"DatabaseReplacedByACopy", "", true},
                                           Accident{"LogRemoved", "-wal"},
                                           Accident{"LogReplacedByACopy", "-wal", true},
                                           Accident{"IndexOfTheLogRemoved", "-shm"}),
                         [](const auto& accident) { return accident.param.name; });

TEST_F(SqliteStoreTest, FullDisk_RefusesCommitAndKeepsFacts) {
  auto store = OpenSqliteStore({.path = path(), .max_database_bytes = 1 << 20});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit(NumberedBatch(1)).ok());
  const std::string large(4 << 20, 'x');
  WriteBatch batch = NumberedBatch(2);
  batch.manifests.front().bytes = large;
  const absl::Status full = (*store)->Commit(batch);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("free space"));

  EXPECT_THAT((*store)->Load()->keys, SizeIs(1));
  EXPECT_EQ((*store)->FindResponse("key-2").value(), std::nullopt);
  EXPECT_TRUE((*store)->Commit(NumberedBatch(3)).ok());
}

TEST(SqliteStatus, Remedy_FollowsSqlitesCode) {
  for (const auto& [code, remedy] :
       {std::pair(SQLITE_FULL, "; free space"),
        std::pair(SQLITE_NOMEM, "; give the global store more memory"),
        std::pair(SQLITE_IOERR_NOMEM, "; give the global store more memory"),
        std::pair(SQLITE_IOERR_READ, "; check the disk"), std::pair(SQLITE_BUSY, "; try again when no other"),
        std::pair(SQLITE_TOOBIG, "; report this defect")}) {
    const absl::Status status = SqliteStatus(code, nullptr);
    EXPECT_THAT(status.message(), HasSubstr(remedy)) << code;
    EXPECT_THAT(status.message(), ::testing::StartsWith("use the metadata database: "));
  }
}

TEST_F(SqliteStoreTest, FileThatIsNotADatabase_IsRefused) {
  std::ofstream(path()) << std::string(8192, 'z');
  const absl::Status status = OpenError();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(SqliteStoreTest, DamagedDatabase_IsDataLoss) {
  {
    auto store = Open();
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(store->Commit(NumberedBatch(i)).ok());
  }
  const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(path()));
  ASSERT_GT(bytes, 8192);
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(static_cast<size_t>(bytes) - 4096, '\xa5');
  file.close();
  auto store = OpenSqliteStore({.path = path()});
  const absl::Status status = store.ok() ? (*store)->Load().status() : store.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(SqliteStoreTest, OtherSchemaVersion_IsRefused) {
  for (const char* const version : {"6", "99"}) {
    Open().reset();
    RunSql(absl::StrCat("PRAGMA user_version = ", version).c_str());
    const absl::Status status = OpenError();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("schema version ", version)));
    std::filesystem::remove(path());
  }
}

TEST_F(SqliteStoreTest, DatabaseOfOtherProgram_IsRefused) {
  RunSql("CREATE TABLE recipes (name TEXT)");
  const absl::Status status = OpenError();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("another program"));
}

TEST_F(SqliteStoreTest, MissingFolder_IsReported) {
  std::filesystem::remove_all(folder_);
  const absl::Status status = OpenError();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(path()));
}

TEST_F(SqliteStoreTest, DamagedRecord_IsDataLossThatNamesTheFact) {
  ASSERT_TRUE(Open()->Commit({.facts = {.artifacts = {{.artifact_id = "a", .origins = {{}}}}}}).ok());
  // Not a message; and a message with an origin (field 9) of another format.
  for (const auto& [record, cause] :
       {std::pair("ff", "the record is damaged"), std::pair("4a0107", "format 7")}) {
    RunSql(absl::StrCat("UPDATE facts SET record = x'", record, "'").c_str());
    const absl::Status status = Open()->Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), HasSubstr("artifact a"));
    EXPECT_THAT(status.message(), HasSubstr(cause));
  }
}

TEST_F(SqliteStoreTest, SqliteSchema_MatchesTheFormat) {
  Open().reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &db), SQLITE_OK);
  std::vector<std::string> columns;
  const auto collect = [](void* into, int, char** values, char**) {
    static_cast<std::vector<std::string>*>(into)->push_back(absl::StrCat(values[0], ".", values[1]));
    return 0;
  };
  ASSERT_EQ(sqlite3_exec(db,
                         "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c "
                         "WHERE m.type = 'table' ORDER BY m.name, c.cid",
                         collect, &columns, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(columns, ::testing::ElementsAre("facts.kind", "facts.name", "facts.record", "facts.ageing",
                                              "facts.updated_ns", "manifests.id", "manifests.artifact_id",
                                              "manifests.piece", "manifests.bytes", "requests.request",
                                              "requests.response", "requests.recorded_ns"));
}

}  // namespace
}  // namespace tensorcast::global_store::sqlite_store_test
