// The only table of the roles that may make each call; README.md shows it too. No role may make a call that
// has no row. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "security/name.h"

namespace tensorcast::security {

// A set of roles, one bit each.
using RoleSet = uint8_t;
constexpr RoleSet Only(Role role) { return static_cast<RoleSet>(1u << static_cast<unsigned>(role)); }

inline constexpr RoleSet kEveryRole = 0x0f;

struct CallRow {
  std::string_view call;  // "GlobalStore/BindKey"
  RoleSet roles;
  std::string_view why;  // for README.md
};

std::span<const CallRow> CallTable();

// The roles that may make this call; none for a call that is not in the table.
RoleSet RolesOf(std::string_view call);
inline bool Contains(RoleSet roles, Role role) { return (roles & Only(role)) != 0; }

// For messages: "node or operator"; "no role" if the set is empty.
std::string RolesText(RoleSet roles);

}  // namespace tensorcast::security
