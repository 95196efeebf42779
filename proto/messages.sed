# SPDX-License-Identifier: Apache-2.0
# Makes of a .proto file the one that C code is generated from. The bytes on the wire are the same.
# - Texts may have NUL bytes: string becomes bytes, but for the keys of maps.
s/^( *)(repeated |optional )?string /\1\2bytes /
# - The compiler for C knows no optional in proto3: it becomes a oneof of one field.
s/^( *)optional ([A-Za-z0-9.]+) ([a-z_0-9]+) = ([0-9]+);/\1oneof has_\3 { \2 \3 = \4; }/
