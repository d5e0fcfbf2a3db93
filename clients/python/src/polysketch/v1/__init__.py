"""The generated code of polysketch/v1/polysketch.proto: polysketch_pb2 and polysketch_pb2_grpc."""
