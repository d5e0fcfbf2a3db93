"""Offline tools: conversion of checkpoints, random models, golden data. See docs/model-format.md."""
